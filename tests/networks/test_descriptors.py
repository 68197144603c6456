"""One vector per frame instead of nine regions."""

import pytest
import torch

from hapvr.networks.backbone import load_backbone
from hapvr.networks.settings import BackboneConfig, Weights

RANDOM = Weights(source="random", seed=1)


def config_of(descriptor: str, crop_px: int) -> BackboneConfig:
    values = {
        "architecture": "resnet18.tv_in1k",
        "weights": RANDOM,
        "crop_px": crop_px,
        "descriptor": descriptor,
    }
    return BackboneConfig.model_validate(values)


@pytest.mark.parametrize(("descriptor", "crop_px"), [("imac_released", 128), ("l3_irmac", 224)])
def test_backbone_gives_one_vector_of_a_frame(descriptor: str, crop_px: int) -> None:
    """A unit vector for each of four maps; the settings name it."""
    config = config_of(descriptor, crop_px)
    backbone = load_backbone(config)
    pixels = torch.randint(
        0, 255, (2, 3, crop_px, crop_px), dtype=torch.uint8, generator=torch.Generator()
    )
    with torch.inference_mode():
        vectors = backbone.regions(pixels)
    assert vectors.shape == (2, 1, 64 + 128 + 256 + 512)
    assert config.num_vectors == 1
    for part in vectors.split([64, 128, 256, 512], dim=-1):
        torch.testing.assert_close(part.norm(dim=-1), torch.ones(2, 1))
    assert backbone.settings["descriptor"] == descriptor
    assert "descriptor" not in load_backbone(config_of("regions", crop_px)).settings
