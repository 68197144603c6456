"""`hapvr models`."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import shard_keys
from hapvr.errors import DamagedError, DataError
from hapvr.model.checkpoint import load_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.networks.whitening import load_whitening
from hapvr.registry.champions import promote
from hapvr.registry.runs import Tracker
from hapvr.registry.versions import WARNING_TAG, register
from hapvr.seeding import torch_rng
from hapvr.steps.project import Project
from hapvr.steps.whitening import make_whitening
from tests.commands.conftest import COMMAND, Call, invoke
from tests.conftest import small_settings, write_settings
from tests.registry.empty_store import new_store
from tests.scorer.bundles import make_bundle


def write_published(path: Path, *, dims: int = 32) -> SimilarityNetwork:
    """A .pth under HAP-VR's names with seeded random weights."""
    network = SimilarityNetwork(NetworkSettings(), dims=dims, generator=torch_rng("published"))
    state = {
        name.replace("comparator.output.", "comparator_module.fconv.").replace(
            "comparator.", "comparator_module."
        ): t
        for name, t in network.state_dict().items()
    }
    torch.save({"model": state}, path)
    return network


def test_import_stores_the_weights_and_says_what_they_are(call: Call, tmp_path: Path) -> None:
    """The release, its settings and the file's digest are told; the stored network has the same
    weights."""
    network = write_published(tmp_path / "model.pth")
    done = call("models", "import", tmp_path / "model.pth", "--out", tmp_path / "network", "--json")
    assert done.code == 0, done.error
    assert done.json["release"] == "hap-vr"
    assert done.json["settings"]["dims"] == 32
    assert len(done.json["sha256"]) == 64
    stored, metadata = load_network(tmp_path / "network")
    assert metadata["import"]["release"] == "hap-vr"
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(stored.state_dict()[name], tensor)


@dataclass(frozen=True)
class ImportedPca:
    """A project with frames, whose whitening was imported."""

    project: Project
    file: Path
    sha256: str
    """as the import says it"""

    @property
    def folder(self) -> Path:
        return self.file.parent


@pytest.fixture(scope="module")
def imported_pca(small_project: Project, tmp_path_factory: pytest.TempPathFactory) -> ImportedPca:
    """A published PCA, whose eigenvalues rise."""
    folder = tmp_path_factory.mktemp("pca")
    vectors, _ = torch.linalg.qr(
        torch.randn(40, 40, generator=torch_rng("pca"), requires_grad=True)
    )
    file = folder / "pca.pth"
    torch.save({"mean": torch.zeros(1, 40), "d": torch.arange(1.0, 41.0), "V": vectors}, file)
    root = DataRoot(folder / "data")
    to = ("--out", root.url, "--dims", "32")
    result = invoke("models", "import", str(file), "--pca", *to, "--json")
    assert result.exit_code == 0, result.stderr
    for key in shard_keys(small_project.root):
        frames = small_project.root.local_path(f"frames/{key}")
        shutil.copytree(frames, folder / "data" / "frames" / key)

    project = Project(small_project.config, root, small_project.folder)
    return ImportedPca(project, file, json.loads(result.stdout)["sha256"])


def test_an_imported_pca_is_whitening_by_the_largest_eigenvalues(
    imported_pca: ImportedPca,
) -> None:
    whitening = load_whitening(imported_pca.project.root)
    assert whitening.sha256 == imported_pca.sha256
    assert whitening.eigenvalues.tolist() == list(range(40, 8, -1))


def test_fitting_leaves_an_imported_whitening_alone(imported_pca: ImportedPca) -> None:
    kept = make_whitening(imported_pca.project)
    assert not kept.done
    assert kept.whitening.sha256 == imported_pca.sha256


def test_a_second_import_of_a_pca_is_refused(call: Call, imported_pca: ImportedPca) -> None:
    to = ("--out", imported_pca.project.root.url, "--dims", "16")
    done = call("models", "import", imported_pca.file, "--pca", *to)
    assert done.code == 2
    assert "has a whitening already" in done.error


@pytest.mark.parametrize(
    ("suffix", "error"), [("safetensors", DamagedError), ("json", DataError)], ids=str
)
def test_a_lost_file_of_an_imported_whitening_is_named(
    imported_pca: ImportedPca, tmp_path: Path, suffix: str, error: type[Exception]
) -> None:
    """It is not fitted in place of what was imported."""
    shutil.copytree(imported_pca.folder / "data" / "whitening", tmp_path / "whitening")
    (tmp_path / "whitening" / f"whitening.{suffix}").unlink()
    with pytest.raises(error, match="is lost"):
        make_whitening(replace(imported_pca.project, root=DataRoot(tmp_path)))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Tracker:
    """Versions 1 and 2 of hapvr, a bundle each, and 1 is the champion; 2 has a card."""
    folder = tmp_path_factory.mktemp("registry")
    tracker = Tracker(new_store(folder), "tests")
    for number in (1, 2):
        run = tracker.start(
            f"run-{number}",
            name="r",
            params={},
            tags={"dagster.run_id": "abc"} if number == 2 else {},
        )
        bundle = make_bundle(folder / str(number), card="# The card\n" if number == 2 else "")
        register(
            tracker,
            "hapvr",
            run_id=run,
            model_uri=bundle.as_uri(),
            target=0.5,
            tags={"backbone.weights": "random", WARNING_TAG: "do not believe it"},
        )

    promote(tracker.client, "hapvr", 1, reason="first")
    return tracker


def config_of(registry: Tracker, folder: Path) -> Path:
    settings = small_settings(folder, folder / "data")
    settings["tracking"]["uri"] = registry.uri
    return write_settings(folder / "config.yaml", settings)


@dataclass(frozen=True)
class Changed:
    """What `hapvr models` answered while version 2 was promoted by hand, shown, and taken back."""

    listed_at_first: list[dict[str, Any]]
    promoted: dict[str, Any]
    shown: dict[str, dict[str, Any]]
    """the champion, by each name that it has"""
    card: str
    rolled_back: dict[str, Any]
    listed: list[dict[str, Any]]
    """at last, the newest version first"""
    lines: list[str]
    """the same as text"""


NAMES_OF_THE_CHAMPION = ("champion", "2", "models:/hapvr@champion")


@pytest.fixture(scope="module")
def changed(registry: Tracker) -> Changed:
    address = ("--tracking-uri", registry.uri)

    def models(*words: object) -> Any:
        return json.loads(invoke("models", *map(str, words), *address, "--json").stdout)

    listed_at_first = models("list")["versions"]
    promoted = models("promote", 2, "--reason", "reviewed")
    shown = {name: models("show", name) for name in NAMES_OF_THE_CHAMPION}
    card = invoke("models", "show", *address).stdout
    rolled_back = models("rollback")
    listed = models("list")["versions"]
    lines = invoke("models", "list", *address).stdout.splitlines()
    return Changed(listed_at_first, promoted, shown, card, rolled_back, listed, lines)


def test_versions_are_listed_with_their_aliases(changed: Changed) -> None:
    """The newest first."""
    aliases = [row["aliases"] for row in changed.listed_at_first]
    assert aliases == [["challenger"], ["champion"]]


def test_a_promotion_names_both_champions(changed: Changed) -> None:
    assert changed.promoted == {"name": "hapvr", "champion": 2, "before": 1}


@pytest.mark.parametrize("name", NAMES_OF_THE_CHAMPION)
def test_a_version_is_shown_by_any_of_its_names(changed: Changed, name: str) -> None:
    """Its parts and its card."""
    described = changed.shown[name]
    assert described == changed.shown["2"]
    assert described["backbone"]["architecture"] == "test_resnet.r160_in1k"
    assert described["card"] == "# The card\n"


def test_the_champions_card_is_shown_as_text(changed: Changed) -> None:
    assert changed.card == "# The card\n\n"


def test_a_rollback_names_the_champion(changed: Changed) -> None:
    assert changed.rolled_back == {"name": "hapvr", "champion": 1}


def test_a_listed_version_says_what_it_is_worth_and_who_made_it(changed: Changed) -> None:
    second, _ = changed.listed
    assert second["target"] == 0.5
    assert second["weights"] == "random"
    assert second["made_by"] == "Dagster run abc"


def test_a_listed_version_says_what_was_decided_of_it_and_when(changed: Changed) -> None:
    second, first = changed.listed
    assert second["decision"] == "was champion; version 1 replaced it by rollback: reviewed"
    assert first["decision"] == "champion by rollback: rolled back by hand"
    assert first["decided"] > first["created"] > "2026"


def test_a_decision_is_in_the_description_that_mlflow_shows(
    changed: Changed, registry: Tracker
) -> None:
    """Behind the warning."""
    for row in changed.listed:
        version = registry.client.get_model_version("hapvr", str(row["version"]))
        paragraphs = version.description.split("\n\n")
        assert paragraphs[:2] == ["Warning: do not believe it", row["decision"]]


def test_a_list_as_text_has_the_warnings(changed: Changed) -> None:
    rows = [line[:15].split() for line in changed.lines if line[2].isdigit()]
    assert rows == [["2", "challenger"], ["1", "champion"]]
    assert changed.lines[2] == changed.lines[5] == "     warning: do not believe it"


@pytest.mark.usefixtures("changed")
def test_the_configuration_names_the_registry(
    call: Call, registry: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no address is given. MLflow sets a variable where it is told one."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("HAPVR_CONFIG", str(config_of(registry, tmp_path)))
    assert call("models", "show", "champion", "--json").json["card"] == ""


def test_shells_complete_verbs() -> None:
    """What `hapvr --install-completion` makes a shell ask for."""
    words = {"_HAPVR_COMPLETE": "complete_bash", "COMP_WORDS": "hapvr models pu", "COMP_CWORD": "2"}
    assert CliRunner().invoke(COMMAND, [], prog_name="hapvr", env=words).stdout.split() == [
        "push",
        "pull",
    ]
