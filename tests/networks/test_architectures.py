"""Any network of timm as backbone and teacher."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from hapvr.errors import ConfigError
from hapvr.networks.backbone import load_backbone, load_teacher
from hapvr.networks.settings import BackboneConfig, TeacherConfig, Weights
from hapvr.networks.weights import normalize_pixels
from hapvr.seeding import torch_rng

RANDOM = Weights(source="random", seed=3)


@pytest.fixture(scope="module")
def frames() -> Tensor:
    """[2, 3, 224, 224] uint8: coarse random patterns."""
    coarse = torch.randint(
        0, 256, (2, 3, 14, 14), generator=torch_rng("architectures"), dtype=torch.uint8
    )
    return coarse.repeat_interleave(16, 2).repeat_interleave(16, 3)


def backbone_config(architecture: str, **more: Any) -> BackboneConfig:
    return BackboneConfig.model_validate({"architecture": architecture, "weights": RANDOM} | more)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "more", "channels"),
    [
        ("resnet50.tv_in1k", {}, 256 + 512 + 1024 + 2048),
        ("mobilenetv2_100", {"options": {"pad_type": "same"}}, 24 + 32 + 96 + 320),
        ("vit_small_patch16_dinov3", {}, 384),
    ],
)
def test_any_architecture_gives_nine_unit_regions(
    architecture: str, more: dict[str, Any], channels: int, frames: Tensor
) -> None:
    """[B, 9, C] unit vectors that differ between frames; C is what the network's scales or tokens
    have."""
    backbone = load_backbone(backbone_config(architecture, **more))
    with torch.inference_mode():
        regions = backbone.regions(frames)
    assert regions.shape == (2, 9, channels)
    torch.testing.assert_close(regions.norm(dim=-1), torch.ones(2, 9))
    assert not torch.allclose(regions[0], regions[1], atol=1e-3)


def test_a_transformer_pools_its_patch_tokens_into_overlapping_windows(frames: Tensor) -> None:
    """Each region is the mean of 6 x 6 of the 14 x 14 tokens, three apart."""
    backbone = load_backbone(backbone_config("vit_tiny_patch16_224"))
    network = backbone.network.transformer
    with torch.inference_mode():
        pooled_regions = backbone.regions(frames).view(2, 3, 3, -1)
        output = network.forward_features(normalize_pixels(frames, (0.5,) * 3, (0.5,) * 3))

    patches = output[:, 1:].view(2, 14, 14, -1)
    for row in range(3):
        for column in range(3):
            window = patches[:, 3 * row : 3 * row + 6, 3 * column : 3 * column + 6].mean((1, 2))
            torch.testing.assert_close(
                pooled_regions[:, row, column], F.normalize(window, dim=-1), rtol=1e-4, atol=1e-5
            )


def test_transformer_weights_of_another_side_are_loaded(tmp_path: Path) -> None:
    """A published transformer is loaded for crops of a side that it was not trained with."""
    path = tmp_path / "weights.safetensors"
    source = timm.create_model("vit_tiny_patch16_224", img_size=96).eval()
    save_file(source.state_dict(), path)
    weights = Weights(source="file", path=path)
    teacher = load_teacher(
        TeacherConfig(architecture="vit_tiny_patch16_224", weights=weights), crop_px=224
    )
    assert teacher.identity.source == "file"
    torch.testing.assert_close(
        teacher.network.blocks[0].attn.qkv.weight, source.blocks[0].attn.qkv.weight.detach()
    )


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"architecture": "resnet51"}, r"cannot make resnet51 .*timm\.list_models"),
        (
            {"architecture": "resnet18", "crop_px": 160, "options": {"output_stride": 32}},
            r"no 3 x 3 regions of crops of 160 px .*set backbone\.crop_px",
        ),
    ],
)
def test_backbones_that_cannot_serve_are_refused(section: dict[str, Any], message: str) -> None:
    """Before any frame is read: unknown names and options, crops and networks without 3 x 3
    regions, no class token."""
    with pytest.raises(ConfigError, match=message):
        load_backbone(backbone_config(**section))
