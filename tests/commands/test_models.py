"""`hapvr models`."""

import shutil
from dataclasses import replace
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
from hapvr.registry.runs import Tracker
from hapvr.registry.versions import WARNING_TAG, promote, register
from hapvr.seeding import torch_rng
from hapvr.steps.project import Project
from hapvr.steps.whitening import make_whitening
from tests.commands.conftest import COMMAND, Call
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


def test_import_of_a_pca_makes_it_the_whitening(
    call: Call, small_project: Project, tmp_path: Path
) -> None:
    """A published PCA, its eigenvalues rising, is whitening by the largest ones, and fitting leaves
    it alone."""
    vectors, _ = torch.linalg.qr(
        torch.randn(40, 40, generator=torch_rng("pca"), requires_grad=True)
    )
    torch.save(
        {"mean": torch.zeros(1, 40), "d": torch.arange(1.0, 41.0), "V": vectors},
        tmp_path / "pca.pth",
    )
    root = DataRoot(tmp_path / "data")
    done = call(
        "models",
        "import",
        tmp_path / "pca.pth",
        "--pca",
        "--out",
        root.url,
        "--dims",
        "32",
        "--json",
    )
    assert done.code == 0, done.error
    whitening = load_whitening(root)
    assert done.json["sha256"] == whitening.sha256
    assert whitening.eigenvalues.tolist() == list(range(40, 8, -1))
    project = Project(small_project.config, root, small_project.folder)
    for key in shard_keys(small_project.root):
        shutil.copytree(
            small_project.root.local_path(f"frames/{key}"), tmp_path / "data" / "frames" / key
        )

    kept = make_whitening(project)
    assert not kept.done
    assert kept.whitening.sha256 == whitening.sha256
    done = call(
        "models", "import", tmp_path / "pca.pth", "--pca", "--out", root.url, "--dims", "16"
    )
    assert done.code == 2
    assert "has a whitening already" in done.error
    for lost, error in (
        ("safetensors", DamagedError),
        ("json", DataError),
    ):  # the first is fitted again
        shutil.copytree(tmp_path / "data" / "whitening", tmp_path / lost / "whitening")
        (tmp_path / lost / "whitening" / f"whitening.{lost}").unlink()
        with pytest.raises(error, match="is lost"):
            make_whitening(replace(project, root=DataRoot(tmp_path / lost)))


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


def test_versions_are_listed_promoted_shown_and_rolled_back(
    call: Call, registry: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 2 by hand: its parts and card; back to 1. Tags, descriptions and the list say so, and
    who made what."""
    address = ("--tracking-uri", registry.uri)

    def models(*words: object) -> Any:
        return call("models", *words, *address, "--json").json

    assert [row["aliases"] for row in models("list")["versions"]] == [["challenger"], ["champion"]]
    assert models("promote", 2, "--reason", "reviewed") == {
        "name": "hapvr",
        "champion": 2,
        "before": 1,
    }
    described = models("show", "champion")
    assert described == models("show", "2") == models("show", "models:/hapvr@champion")
    assert described["backbone"]["architecture"] == "resnet18.tv_in1k"
    assert described["card"] == "# The card\n"
    assert call("models", "show", *address).out == "# The card\n\n"
    assert models("rollback") == {"name": "hapvr", "champion": 1}
    second, first = models("list")["versions"]
    assert second["target"] == 0.5
    assert second["weights"] == "random"
    assert second["made_by"] == "Dagster run abc"
    assert second["decision"] == "was champion; version 1 replaced it by rollback: reviewed"
    assert first["decision"] == "champion by rollback: rolled back by hand"
    assert first["decided"] > first["created"] > "2026"
    for row in (first, second):
        paragraphs = registry.client.get_model_version(
            "hapvr", str(row["version"])
        ).description.split("\n\n")
        assert paragraphs[:2] == ["Warning: do not believe it", row["decision"]]

    lines = call("models", "list", *address).out.splitlines()
    assert [line[:15].split() for line in lines if line[2].isdigit()] == [
        ["2", "challenger"],
        ["1", "champion"],
    ]
    assert lines[2] == lines[5] == "     warning: do not believe it"
    monkeypatch.delenv(
        "MLFLOW_TRACKING_URI", raising=False
    )  # MLflow sets it where it is told an address
    monkeypatch.setenv("HAPVR_CONFIG", str(config_of(registry, tmp_path)))
    assert call("models", "show", "champion", "--json").json["card"] == ""


def test_shells_complete_verbs() -> None:
    """What `hapvr --install-completion` makes a shell ask for."""
    words = {"_HAPVR_COMPLETE": "complete_bash", "COMP_WORDS": "hapvr models pu", "COMP_CWORD": "2"}
    assert CliRunner().invoke(COMMAND, [], prog_name="hapvr", env=words).stdout.split() == [
        "push",
        "pull",
    ]
