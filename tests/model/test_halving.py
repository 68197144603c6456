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
    """Odd sizes and values that are cut included."""
    maps = torch.randn(shape, generator=torch_rng("maps", *shape)).contiguous(memory_format=memory_format)
    assert torch.equal(halve_and_rectify(maps), F.relu(F.max_pool2d(maps, 2)))


def test_not_a_number_stays() -> None:
    """A broken value is not hidden by the maximum."""
    maps = torch.full((1, 1, 2, 2), 1.0)
    maps[0, 0, 1, 0] = torch.nan
    assert halve_and_rectify(maps).isnan().all()
