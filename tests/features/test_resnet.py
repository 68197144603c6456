"""The stages of a ResNet without timm."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from hapvr.features.resnet import LAYOUTS, ResNetStages
from hapvr.seeding import torch_rng


@pytest.mark.parametrize("architecture", sorted(LAYOUTS))
def test_stages_have_timms_tensors(architecture: str) -> None:
    """Every architecture has the names and shapes of timm's state dict, so stored weights fit."""
    with torch.device("meta"):
        wanted = timm.create_model(architecture, pretrained=False, features_only=True, out_indices=(1, 2, 3, 4))
        found = ResNetStages(architecture)
    shapes = [{name: tensor.shape for name, tensor in network.state_dict().items()} for network in (wanted, found)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("architecture", ["resnet18.tv_in1k", "resnet50.tv_in1k"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_stages_give_timms_bits(architecture: str, layout: torch.memory_format) -> None:
    """The four maps equal timm's to the last bit, with norms as a trained network has them."""
    wanted = timm.create_model(architecture, pretrained=False, features_only=True, out_indices=(1, 2, 3, 4)).eval()
    rng = torch_rng("resnet")
    for norm in (module for module in wanted.modules() if isinstance(module, nn.BatchNorm2d)):
        for values in (norm.weight.data, norm.bias.data, norm.running_mean):
            assert isinstance(values, torch.Tensor)
            values.copy_(torch.randn(values.shape, generator=rng))
    found = ResNetStages(architecture).eval()
    found.load_state_dict(wanted.state_dict())
    images = torch.randn(2, 3, 96, 96, generator=rng).contiguous(memory_format=layout)
    with torch.inference_mode():
        maps = [network.to(memory_format=layout)(images) for network in (wanted, found)]
    assert len(maps[0]) == 4
    for first, second in zip(*maps, strict=True):
        assert torch.equal(first, second)
