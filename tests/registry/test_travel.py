"""Models that travel: through a folder, and through the hub's own client and a stand-in for the
hub."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
import yaml

from hapvr.errors import ArgumentError, DataError
from hapvr.files import file_sha256
from hapvr.model.checkpoint import save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.registry.champions import champion_of
from hapvr.registry.client import registered_bundle
from hapvr.registry.runs import Tracker
from hapvr.registry.travel import README_FILE, SUMS_FILE, export_model, pull_model
from hapvr.scorer.bundle_writer import complete_bundle
from hapvr.scorer.calibration import fit_calibration
from hapvr.scorer.trial import try_bundle
from hapvr.seeding import torch_rng
from tests.conftest import run_python
from tests.registry.empty_store import new_store
from tests.registry.model_hub import model_hub
from tests.scorer.bundles import DIMS, make_bundle
from tests.steps.search_projects import evidence


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fitted = fit_calibration([0.9] * 20, [0.1] * 20, source={}, frame_threshold=0.7)
    folder = make_bundle(tmp_path_factory.mktemp("travel"), calibration=fitted)
    complete_bundle(folder, evidence=evidence(), card="# The card\n")
    return folder


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def exported(bundle: Path) -> Path:
    export_model(bundle, bundle.parent / "exported", licence="apache-2.0")
    return bundle.parent / "exported"


def test_other_tools_verify_the_digests_of_an_exported_folder(exported: Path) -> None:
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", SUMS_FILE], cwd=exported, check=True
    )


def test_an_exported_card_begins_with_what_hubs_read(exported: Path) -> None:
    head, card = (exported / README_FILE).read_text().removeprefix("---\n").split("---\n\n")
    assert yaml.safe_load(head)["license"] == "apache-2.0"
    assert card == "# The card\n"


def test_an_exported_folder_has_the_files_of_the_bundle_card_and_digests(
    bundle: Path, exported: Path
) -> None:
    assert names_in(exported) == names_in(bundle) | {README_FILE, SUMS_FILE}


def test_nothing_is_exported_into_a_folder_that_holds_something(
    bundle: Path, exported: Path
) -> None:
    with pytest.raises(ArgumentError, match="is not empty"):
        export_model(bundle, exported)


DAMAGE = {
    "a network of other bytes": (
        "network/network.safetensors",
        "X",
        "network.safetensors has another SHA-256 than",
    ),
    "a file that is gone": ("calibration.json", None, "calibration.json is missing"),
    "no list": (SUMS_FILE, None, "SHA256SUMS is missing"),
    "a list of something else": (
        SUMS_FILE,
        f"{'0' * 64}  ../../evil.pth\n",
        r"lists .*evil.pth', which is not a file",
    ),
    "another model": ("", "", "and 00 was asked for"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_another_digest_is_refused_before_anything_is_registered(
    exported: Path, tmp_path: Path, damage: str
) -> None:
    """Whatever was changed, the error says which file; no tracker is asked."""
    name, content, message = DAMAGE[damage]
    folder = shutil.copytree(exported, tmp_path / "model")
    if content is None:
        (folder / name).unlink()
    elif name:
        with (folder / name).open("a") as file:
            file.write(content)

    with pytest.raises(DataError, match=message):
        pull_model(str(folder), None, "hapvr", sha256="" if name else "00")  # type: ignore[arg-type]


@pytest.fixture
def copied_onnx_bundle(onnx_bundle: Path, tmp_path: Path) -> Path:
    """A bundle with ONNX files that a test may change."""
    return shutil.copytree(onnx_bundle, tmp_path / "bundle")


@pytest.mark.slow
def test_a_bundle_with_onnx_files_becomes_a_version(onnx_bundle: Path, tmp_path: Path) -> None:
    tracker = Tracker(new_store(tmp_path / "store"), "hapvr")
    export_model(onnx_bundle, tmp_path / "exported")
    assert pull_model(str(tmp_path / "exported"), tracker, "hapvr")[0] == 1


@pytest.mark.slow
def test_a_bundle_whose_onnx_file_was_changed_is_not_exported(
    copied_onnx_bundle: Path, tmp_path: Path
) -> None:
    with (copied_onnx_bundle / "onnx" / "embed.onnx").open("ab") as file:
        file.write(b"X")
    with pytest.raises(DataError, match=r"embed\.onnx is missing or differs"):
        export_model(copied_onnx_bundle, tmp_path / "exported")


@pytest.mark.slow
def test_onnx_files_of_another_network_are_refused(
    copied_onnx_bundle: Path, tmp_path: Path
) -> None:
    """Bundle and digests agree, and the weights in torch are others than those that a processor
    would run."""
    another = SimilarityNetwork(NetworkSettings(), dims=DIMS, generator=torch_rng("another"))
    shutil.rmtree(copied_onnx_bundle / "network")
    save_network(another, copied_onnx_bundle / "network", metadata={})
    complete_bundle(copied_onnx_bundle, evidence="", card="")
    export_model(copied_onnx_bundle, tmp_path / "swapped")
    tracker = Tracker(new_store(tmp_path / "store"), "hapvr")
    with pytest.raises(
        DataError, match=r"swapped has ONNX files of another network; .* differ from torch's by \d"
    ):
        pull_model(str(tmp_path / "swapped"), tracker, "hapvr")


@pytest.mark.slow
def test_an_onnx_file_that_ends_the_process_is_refused(copied_onnx_bundle: Path) -> None:
    split = (
        onnx.helper.make_node("Split", ["x"], [], axis=1),
        onnx.helper.make_node("Relu", ["x"], ["y"]),
    )
    ends = [onnx.helper.make_tensor_value_info(name, 1, ["T", 9, 16]) for name in "xy"]
    graph = onnx.helper.make_graph(split, "g", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    onnx.save(model, copied_onnx_bundle / "onnx" / "embed.onnx")
    complete_bundle(copied_onnx_bundle, evidence="", card="")
    with pytest.raises(DataError, match="ends its process"):
        try_bundle(copied_onnx_bundle)


@dataclass(frozen=True)
class Called:
    """How a call of `hapvr models` ended."""

    code: int
    output: str
    error: str


@dataclass(frozen=True)
class Travels:
    """What came of a model that was pushed to a hub and pulled from it."""

    calls: Mapping[str, Called]
    """by what they were for"""
    digest: str
    """of the model"""
    private: frozenset[str]
    """repositories that the push made private"""
    files_at_end: frozenset[str]
    """of the repository, once another model was pushed to it"""
    uri: str
    """of the store that pulled it"""
    second: Path
    """the bundle of the other model"""


def called(address: str, calls: Mapping[str, tuple[object, ...]], home: Path) -> dict[str, Called]:
    """Calls of `hapvr models` in a process that knows the hub at this address, in their order."""
    of_hub = {
        "HF_ENDPOINT": address,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_TOKEN": "hf_token",
        "HF_HOME": str(home),
    }
    asked = json.dumps([["models", *map(str, call)] for call in calls.values()])
    answers = run_python("-m", "tests.commands.calls", input=asked, env=os.environ | of_hub)
    ended = [Called(*answer) for answer in json.loads(answers)]
    return dict(zip(calls, ended, strict=True))


@pytest.fixture(scope="module")
def travels(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Travels:
    """A model goes to a hub and comes back, twice; three others do not come; then another model
    goes to the same repository."""
    folder = tmp_path_factory.mktemp("travels")
    uri = new_store(folder / "store")
    second = make_bundle(folder / "second")
    digest = export_model(bundle, folder / "exported")
    changed = {name: (folder / "exported" / name).read_bytes() for name in names_in(bundle)}
    changed[SUMS_FILE] = (folder / "exported" / SUMS_FILE).read_bytes()
    changed["network/network.json"] = b"{}"
    tracking = ("--tracking-uri", uri)
    pull = ("pull", "hf://org/model", *tracking, "--sha256", digest, "--json")
    calls = {
        "push": ("push", "hf://org/model", bundle, "--json"),
        "pull": pull,
        "second pull": pull,
        "changed": ("pull", "hf://org/changed", *tracking),
        "absent": ("pull", "hf://org/absent", *tracking),
        "away": ("pull", "hf://org/away", *tracking),
        "no name": ("pull", "hf://org/../model", *tracking),
        "push of another": ("push", "hf://org/model", second),
    }
    with model_hub() as hub:
        hub.repositories["org/changed"] = changed
        ended = called(f"http://127.0.0.1:{hub.server_port}", calls, folder / "hf")
        return Travels(
            calls=ended,
            digest=digest,
            private=frozenset(hub.private),
            files_at_end=frozenset(hub.repositories["org/model"]),
            uri=uri,
            second=second,
        )


@pytest.mark.slow
def test_a_push_prints_the_digest_of_the_model(travels: Travels) -> None:
    push = travels.calls["push"]
    assert push.code == 0
    assert push.error == ""
    assert json.loads(push.output)["sha256"] == travels.digest


@pytest.mark.slow
def test_a_push_makes_its_repository_private(travels: Travels) -> None:
    assert travels.private == {"org/model"}


@pytest.mark.slow
def test_a_pull_names_the_commit_that_was_pushed(travels: Travels) -> None:
    pushed = json.loads(travels.calls["push"].output)
    pulled = json.loads(travels.calls["pull"].output)
    assert pulled["source"] == pushed["place"]


@pytest.mark.slow
@pytest.mark.parametrize("call", ["pull", "second pull"])
def test_a_model_that_is_pulled_again_keeps_its_version(travels: Travels, call: str) -> None:
    assert json.loads(travels.calls[call].output)["version"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "code"),
    [("changed", 1), ("absent", 1), ("away", 1), ("no name", 2)],
    ids=["another digest", "no repository", "no answer", "no name of a repository"],
)
def test_a_pull_that_cannot_be_is_one_sentence(travels: Travels, place: str, code: int) -> None:
    refused = travels.calls[place]
    assert refused.code == code
    assert refused.error.count("\n") == 1


@pytest.mark.slow
def test_a_pull_of_another_digest_names_the_file(travels: Travels) -> None:
    assert "network/network.json has another SHA-256" in travels.calls["changed"].error


@pytest.mark.slow
def test_a_push_leaves_no_file_of_an_earlier_model_and_those_of_people(travels: Travels) -> None:
    assert travels.calls["push of another"].code == 0
    kept = {README_FILE, SUMS_FILE, ".gitattributes", "notes.txt"}
    assert travels.files_at_end == names_in(travels.second) | kept


@pytest.mark.slow
def test_a_pulled_model_has_the_files_that_were_pushed(bundle: Path, travels: Travels) -> None:
    pulled = registered_bundle("models:/hapvr/1", travels.uri)
    digests = {name: file_sha256(bundle / name) for name in names_in(bundle)}
    assert {name: file_sha256(pulled / name) for name in names_in(pulled)} == digests


@pytest.mark.slow
def test_a_pulled_model_is_not_the_champion(travels: Travels) -> None:
    assert champion_of(Tracker(travels.uri, "hapvr").client, "hapvr") is None


@pytest.mark.slow
def test_the_decision_about_a_pulled_model_names_its_hub(travels: Travels) -> None:
    version = Tracker(travels.uri, "hapvr").client.get_model_version("hapvr", "1")
    assert version.tags["hapvr.gate.decision"].startswith("pulled from hf://org/model@")
