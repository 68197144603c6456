"""TorchScript files, which no bundle contains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hapvr.errors import DataError
from hapvr.networks.settings import BackboneConfig, Weights
from hapvr.scorer.bundle import load_bundle
from hapvr.scorer.description import BACKBONE_FILE
from tests.scorer.bundles import make_bundle


class OtherVector(nn.Module):
    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.mean((2, 3))


class ColourVector(nn.Module):
    def forward(self, pixels: Tensor) -> Tensor:
        return torch.cat([pixels.mean((2, 3)), pixels.amax((2, 3)), pixels.amin((2, 3))], 1)


@pytest.fixture
def torchscript(tmp_path: Path) -> Path:
    path = tmp_path / "copies.pt"
    torch.jit.save(torch.jit.script(ColourVector()), str(path))
    return path


def test_a_torchscript_backbone_is_never_part_of_a_bundle(
    torchscript: Path, scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code is taken only from the file that this machine's owner names, and only if it is the recorded one."""
    config = BackboneConfig(weights=Weights(source="torchscript", path=torchscript), crop_px=128)
    folder = make_bundle(tmp_path, backbone_config=config)
    assert not (folder / BACKBONE_FILE).exists()
    with pytest.raises(DataError, match="set HAPVR_BACKBONE_FILE to your copy of that file"):
        load_bundle(folder)
    monkeypatch.setenv("HAPVR_BACKBONE_FILE", str(torchscript))
    assert load_bundle(folder).features(scenes / "a.mp4").shape[:2] == (12, 1)
    torch.jit.save(torch.jit.script(OtherVector()), str(torchscript))
    with pytest.raises(DataError, match=r"SHA-256 .* or correct HAPVR_BACKBONE_FILE"):
        load_bundle(folder)
