"""Checkpoints of VVS's release, made by the tests under its names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from hapvr.data.filesystem import DataRoot
from hapvr.errors import ArgumentError, DataError
from hapvr.model.checkpoint import load_network, save_network
from hapvr.model.published import import_released
from hapvr.model.vvs import VvsNetwork
from hapvr.scorer.bundle import load_similarity_model
from hapvr.steps.whitening import import_whitening, read_pca
from tests.conftest import GOLDEN
from tests.model.vvs import release


@pytest.fixture(scope="module")
def vvs() -> release.Golden:
    return release.read(GOLDEN / "vvs_golden.npz")


def content(vvs: release.Golden) -> dict[str, Any]:
    """What a .pth of the release holds, in the golden sizes."""
    nets: dict[str, dict[str, Tensor]] = {"swg": {}, "ddm": {}}
    for name in release.names(vvs):
        network, _, tensor = name.partition("/")
        nets[network][tensor] = vvs[f"weight/{name}"]

    for tensors in nets.values():
        for part in ("mean", "components", "denominator"):
            tensors[f"pca_layer.{part}"] = vvs[f"pca/{part}"].double()

    for number in (1, 2, 3):
        nets["swg"][f"selfsim_encoder.bottleneck_layer.bn{number}.num_batches_tracked"] = (
            torch.tensor(80_000)
        )

    nets["swg"] |= {name: torch.tensor(0.5) for name in ("zero", "gamma", "saliency_thr")}
    optimizer = {
        "state": {0: {"step": torch.tensor(1.0)}},
        "param_groups": [{"lr": 2e-5, "params": [0]}],
    }
    return {"tsm_tgm_model": nets["swg"], "ddm_model": nets["ddm"], "optimizer": optimizer}


def saved(folder: Path, values: dict[str, Any], **more: Any) -> Path:
    torch.save(values | more, folder / "vvs.pth")
    return folder / "vvs.pth"


def test_an_imported_network_embeds_as_the_release(vvs: release.Golden, tmp_path: Path) -> None:
    """Weights, PCA and vectors are the release's; the network is stored and read again as every
    other."""
    file = saved(tmp_path, content(vvs))
    network, report = import_released(file)
    assert isinstance(network, VvsNetwork)
    assert report["release"] == "vvs"
    assert network.dims == 24
    assert network.extras_dims == 40
    assert {"swg/zero", "ddm/pca_layer.mean"} <= set(report["ignored"])
    network = load_network(
        save_network(network, tmp_path / "network", metadata={"import": report})
    )[0]
    whitening = import_whitening(DataRoot(tmp_path / "data"), file, dims=None)
    assert whitening.dims == 24
    assert whitening.eps == 0.0
    assert isinstance(network, VvsNetwork)
    vectors = []
    for clip in ("anchor", "positive", "negative", "mixed", "all_easy", "one", "two", "three"):
        raw = vvs[f"raw/{clip}"]
        regions = torch.from_numpy(
            whitening.apply(release.base(raw, vvs["split"].tolist()).numpy())
        )
        vector = network.frame_vectors(regions, release.pooled(vvs, raw)).sum(0)
        vectors.append(vector / vector.norm())

    # the directions of an imported PCA are sorted, so vectors have another order of values, and the
    # same products
    assert_close(
        torch.stack(vectors) @ torch.stack(vectors).T, vvs["eval/cosine"], rtol=0, atol=1e-4
    )
    assert isinstance(load_similarity_model(file)[0], VvsNetwork)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda swg, ddm: swg.pop("comperator_layer.conv1.weight"), "conv1.weight.* is missing"),
        (lambda swg, ddm: swg.update(other=torch.ones(1)), "swg/other"),
        (lambda swg, ddm: ddm.update({"ddm_layer1.weight": torch.ones(7, 40)}), "has shape"),
        (lambda swg, ddm: ddm["ddm_layer1.weight"].fill_(torch.nan), "NaN"),
        (lambda swg, ddm: [net.clear() for net in (swg, ddm)], "no state dict"),
        (lambda swg, ddm: swg.pop("pca_layer.components"), "give dims"),
    ],
)
def test_damaged_files_are_named(
    vvs: release.Golden, tmp_path: Path, change: Any, message: str
) -> None:
    values = {
        network: {name: tensor.clone() for name, tensor in tensors.items()}
        if network != "optimizer"
        else tensors
        for network, tensors in content(vvs).items()
    }
    change(values["tsm_tgm_model"], values["ddm_model"])
    with pytest.raises(DataError, match=message):
        import_released(saved(tmp_path, values))


def test_pca_of_a_checkpoint(vvs: release.Golden, tmp_path: Path) -> None:
    """Variances are squares of the stored denominators; too many dims and damaged values are
    refused."""
    file = saved(tmp_path, content(vvs))
    pca = read_pca(file, dims=None)
    assert_close(np.sort(pca.eigenvalues), vvs["pca/denominator"].square().sort().values.numpy())
    assert read_pca(file, dims=5).eigenvectors.shape == (40, 5)
    with pytest.raises(ArgumentError, match="25"):
        read_pca(file, dims=25)
    values = content(vvs)
    values["tsm_tgm_model"]["pca_layer.denominator"] = torch.zeros(24)
    with pytest.raises(DataError, match="above 0 and V"):
        read_pca(saved(tmp_path, values), dims=None)
