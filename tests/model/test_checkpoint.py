"""Networks as files: what is saved is what is loaded, and damage is named."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hapvr.errors import DamagedError
from hapvr.model.checkpoint import DESCRIPTION_FILE, WEIGHTS_FILE, load_network, save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.seeding import torch_rng


def build(*, dims: int = 16, **settings: Any) -> SimilarityNetwork:
    """A small network."""
    return SimilarityNetwork(
        NetworkSettings(**settings), dims=dims, generator=torch_rng("checkpoint")
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"attention_form": "cosine", "symmetric_chamfer": True, "spatial_rate": 0.34},
        {"attention": False, "binary_bits": 24},
        {"attention": False, "comparator": False, "temporal_rate": 1.0},
    ],
)
def test_a_network_comes_back_equal(settings: dict[str, Any], tmp_path: Path) -> None:
    """Weights bit for bit, settings, and metadata; ready to score."""
    network = build(**settings)
    metadata = {"run": "a", "steps": 3, "nested": {"list": [1, 2.5, None]}}
    folder = save_network(network, tmp_path / "new" / "folder", metadata=metadata)
    loaded, loaded_metadata = load_network(folder)
    assert folder == tmp_path / "new" / "folder"
    assert loaded.settings == network.settings
    assert loaded_metadata == metadata
    assert not loaded.training
    assert loaded.state_dict().keys() == network.state_dict().keys()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, network.state_dict()[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"family": "other"}}, "other"),
        ({"settings": {"colour": "red"}}, "colour"),
        ({"settings": {"spatial_rate": 3}}, r"spatial_rate: .*\(got 3\)"),
        ({"dims": 8}, r"attention.transform.weight has shape \(16, 16\), expected \(8, 8\)"),
        ({"settings": {"comparator": False}}, "comparator.conv1.weight is unknown"),
        ({"settings": None}, r"network\.json is damaged"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """The error names the file and what disagrees."""
    save_network(build(), tmp_path, metadata={})
    description = json.loads((tmp_path / DESCRIPTION_FILE).read_text())
    (tmp_path / DESCRIPTION_FILE).write_text(json.dumps({**description, **change}))
    with pytest.raises(DamagedError, match=message):
        load_network(tmp_path)


BIAS = "comparator.output.bias"


def test_weights_without_a_tensor_are_refused(tmp_path: Path) -> None:
    save_network(build(), tmp_path, metadata={})
    weights = load_file(tmp_path / WEIGHTS_FILE)
    del weights[BIAS]
    save_file(weights, tmp_path / WEIGHTS_FILE)
    with pytest.raises(DamagedError, match="bias is missing"):
        load_network(tmp_path)


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    save_network(build(), tmp_path, metadata={})
    weights = load_file(tmp_path / WEIGHTS_FILE)
    save_file(weights | {BIAS: weights[BIAS] * torch.nan}, tmp_path / WEIGHTS_FILE)
    with pytest.raises(DamagedError, match="has NaN"):
        load_network(tmp_path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """Truncated weights, and a description that is no JSON."""
    save_network(build(), tmp_path, metadata={})
    (tmp_path / WEIGHTS_FILE).write_bytes(b"\x08\x00")
    with pytest.raises(DamagedError, match=r"network\.safetensors is damaged"):
        load_network(tmp_path)
    (tmp_path / DESCRIPTION_FILE).write_text("{")
    with pytest.raises(DamagedError, match=r"network\.json is damaged"):
        load_network(tmp_path)
