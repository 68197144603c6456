"""`hapvr models`."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from hapvr.features.whitening import load_whitening
from hapvr.model.checkpoint import load_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.seeding import torch_rng
from hapvr.stages.project import Project
from hapvr.stages.whitening import make_whitening
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.manifest import shard_keys
from tests.commands.conftest import Call
from tests.conftest import write_clip


def write_published(path: Path, *, dims: int = 32) -> SimilarityNetwork:
    """A .pth under HAP-VR's names with seeded random weights."""
    network = SimilarityNetwork(NetworkSettings(), dims=dims, generator=torch_rng("published"))
    state = {
        name.replace("comparator.output.", "comparator_module.fconv.").replace("comparator.", "comparator_module."): t
        for name, t in network.state_dict().items()
    }
    torch.save({"model": state}, path)
    return network


def test_import_stores_the_weights_and_says_what_they_are(call: Call, tmp_path: Path) -> None:
    """The release, its settings and the file's digest are told; the stored network has the same weights."""
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


def test_import_as_visil_sym(call: Call, tmp_path: Path) -> None:
    """The tensors do not tell ViSiL_sym from ViSiL_v, so the option does."""
    write_published(tmp_path / "model.pth")
    done = call(
        "models", "import", tmp_path / "model.pth", "--symmetric-chamfer", "--out", tmp_path / "network", "--json"
    )
    assert done.code == 0, done.error
    assert load_network(tmp_path / "network")[0].settings.symmetric_chamfer


def test_import_of_other_files_names_them(call: Call, tmp_path: Path) -> None:
    """Tensors of another network, a text file and an absent one: exit 1 with the file's name."""
    torch.save({"weight": torch.zeros(3)}, tmp_path / "other.pth")
    (tmp_path / "text.pth").write_text("weights")
    for name in ("other.pth", "text.pth", "absent.pth"):
        done = call("models", "import", tmp_path / name, "--out", tmp_path / "network")
        assert done.code == 1
        assert name in done.error
    assert not (tmp_path / "network").exists()


def test_import_of_a_pca_makes_it_the_whitening(call: Call, small_project: Project, tmp_path: Path) -> None:
    """A published PCA, its eigenvalues rising, is whitening by the largest ones, and fitting leaves it alone."""
    vectors, _ = torch.linalg.qr(torch.randn(40, 40, generator=torch_rng("pca")))
    torch.save({"mean": torch.zeros(1, 40), "d": torch.arange(1.0, 41.0), "V": vectors}, tmp_path / "pca.pth")
    root = DataRoot(tmp_path / "data")
    done = call("models", "import", tmp_path / "pca.pth", "--pca", "--out", root.url, "--dims", "32", "--json")
    assert done.code == 0, done.error
    whitening = load_whitening(root)
    assert done.json["sha256"] == whitening.sha256
    torch.testing.assert_close(whitening.eigenvalues, torch.arange(40.0, 8.0, -1.0))
    project = Project(small_project.config, root, small_project.folder)
    for key in shard_keys(small_project.root):
        shutil.copytree(small_project.root.local_path(f"frames/{key}"), tmp_path / "data" / "frames" / key)
    kept = make_whitening(project, shard_keys(small_project.root))
    assert not kept.done
    assert kept.whitening.sha256 == whitening.sha256


def test_list_of_a_registry_that_is_not_there_says_how_to_make_one(call: Call, tmp_path: Path) -> None:
    """Exit 1, the registry's address, and the command that registers a model; no empty database is left behind."""
    done = call("models", "list", "--tracking-uri", f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert done.code == 1
    assert "mlflow.db cannot be opened" in done.error
    assert "`make demo` registers a model" in done.error
    assert list(tmp_path.iterdir()) == []


def test_show_of_a_folder_that_is_no_model(call: Call, tmp_path: Path) -> None:
    """Exit 1 with the folder and what is wanted in it."""
    done = call("models", "show", tmp_path)
    assert done.code == 1
    assert f"{tmp_path} is no model bundle" in done.error
    assert "scorer.json" in done.error


def test_scoring_without_a_registry_says_how_to_make_one(call: Call, tmp_path: Path) -> None:
    """Exit 1 with the address that was asked and the way out, not a trace."""
    clips = [write_clip(tmp_path / name, seed=1) for name in ("a.mp4", "b.mp4")]
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    done = call("score", *clips, "--model", "models:/hapvr@champion", "--tracking-uri", uri)
    assert done.code == 1
    assert "mlflow.db cannot be opened" in done.error
    assert "--tracking-uri says where another registry is" in done.error
    assert not (tmp_path / "mlflow.db").exists()
