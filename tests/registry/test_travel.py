"""Models that travel: through a folder, and through the hub's own client and a stand-in for the
hub."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest
import yaml

from hapvr.errors import ArgumentError, DataError
from hapvr.files import file_sha256
from hapvr.model.checkpoint import save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.registry.client import registered_bundle
from hapvr.registry.runs import Tracker
from hapvr.registry.travel import README_FILE, SUMS_FILE, export_model, pull_model
from hapvr.registry.versions import champion_of
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


def test_an_exported_folder_has_card_and_digests_and_no_other_file(
    bundle: Path, exported: Path
) -> None:
    """Other tools verify the digests and read what stands before the card; a folder of somebody is
    not written to."""
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", SUMS_FILE], cwd=exported, check=True
    )
    head, card = (exported / README_FILE).read_text().removeprefix("---\n").split("---\n\n")
    assert yaml.safe_load(head)["license"] == "apache-2.0"
    assert card == "# The card\n"
    assert names_in(exported) == names_in(bundle) | {README_FILE, SUMS_FILE}
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


@pytest.mark.slow
def test_a_model_goes_to_a_hub_and_comes_back_as_a_version(bundle: Path, tmp_path: Path) -> None:
    """It has the same files, is not the champion, and keeps its version; a hub that lies or is away
    is one sentence; pushing another model leaves none of its files, and those of people."""
    uri = new_store(tmp_path / "store")
    second = make_bundle(tmp_path / "second")
    tracking = ("--tracking-uri", uri)

    def models(address: str, *calls: tuple[object, ...]) -> list[tuple[int, str, str]]:
        of_hub = {
            "HF_ENDPOINT": address,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": "hf_token",
        }
        asked = json.dumps([["models", *map(str, call)] for call in calls])
        environment = os.environ | of_hub | {"HF_HOME": str(tmp_path / "hf")}
        return list(
            map(
                tuple,
                json.loads(run_python("-m", "tests.commands.calls", input=asked, env=environment)),
            )
        )

    with model_hub() as hub:
        address = f"http://127.0.0.1:{hub.server_port}"
        ((code, out, error),) = models(address, ("push", "hf://org/model", bundle, "--json"))
        assert code == 0
        assert error == ""
        assert hub.private == {"org/model"}
        hub.repositories["org/changed"] = hub.repositories["org/model"] | {
            "network/network.json": b"{}"
        }
        pull = (
            "pull",
            "hf://org/model",
            *tracking,
            "--sha256",
            json.loads(out)["sha256"],
            "--json",
        )
        wrong = ("changed", "absent", "away", "../model")
        first_pull, again, *refused, pushed = models(
            address,
            pull,
            pull,
            *(("pull", f"hf://org/{name}", *tracking) for name in wrong),
            ("push", "hf://org/model", second),
        )
        assert json.loads(first_pull[1])["source"] == json.loads(out)["place"]
        assert json.loads(first_pull[1])["version"] == json.loads(again[1])["version"] == 1
        assert [(code, error.count("\n")) for code, _, error in refused] == [
            (1, 1),
            (1, 1),
            (1, 1),
            (2, 1),
        ]
        assert "network/network.json has another SHA-256" in refused[0][2]
        assert pushed[0] == 0
        kept = {README_FILE, SUMS_FILE, ".gitattributes", "notes.txt"}
        assert hub.repositories["org/model"].keys() == names_in(second) | kept

    pulled_bundle = registered_bundle("models:/hapvr/1", uri)
    assert {name: file_sha256(pulled_bundle / name) for name in names_in(pulled_bundle)} == {
        name: file_sha256(bundle / name) for name in names_in(bundle)
    }
    client = Tracker(uri, "hapvr").client
    assert champion_of(client, "hapvr") is None
    assert (
        client.get_model_version("hapvr", "1")
        .tags["hapvr.gate.decision"]
        .startswith("pulled from hf://org/model@")
    )
