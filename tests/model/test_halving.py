"""Pooling and ReLU in one against torch's two."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from hapvr.model.halving import halve_and_rectify
from hapvr.seeding import torch_rng


@pytest.mark.parametrize("shape", [(2, 3, 8, 6), (1, 2, 5, 8), (2, 4, 9, 7), (1, 1, 2, 2)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_halving_equals_pooling_and_relu(shape: tuple[int, ...], memory_format: torch.memory_format) -> None:
    """Values and gradients, odd sizes, ties and cells that are cut included; the same without gradients."""
    maps = (
        torch.randn(shape, generator=torch_rng("maps", *shape)).mul(2).round().contiguous(memory_format=memory_format)
    )
    ours, theirs = maps.clone().requires_grad_(), maps.clone().requires_grad_()
    found, wanted = halve_and_rectify(ours), F.relu(F.max_pool2d(theirs, 2))
    assert torch.equal(found, wanted)
    with torch.no_grad():
        assert torch.equal(halve_and_rectify(maps), wanted)
    weights = torch.randn(wanted.shape, generator=torch_rng("weights"))
    found.backward(weights)
    wanted.backward(weights)
    assert torch.equal(ours.grad, theirs.grad)


def test_not_a_number_stays() -> None:
    """A broken value is not hidden by the maximum."""
    maps = torch.full((1, 1, 2, 2), 1.0)
    maps[0, 0, 1, 0] = torch.nan
    assert halve_and_rectify(maps).isnan().all()
    assert halve_and_rectify(maps.requires_grad_()).isnan().all()
