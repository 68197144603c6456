"""The comparator's kernels against torch's own layers, which are the path of other devices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from hapvr.model.clips import halve_map_mask
from hapvr.model.kernels.comparator import pool_and_rectify
from hapvr.model.layers import Comparator
from hapvr.model.settings import NetworkSettings
from hapvr.model.similarity import chamfer
from hapvr.seeding import torch_rng

SHAPES = [(2, 8, 8), (3, 4, 9), (1, 11, 6), (2, 13, 15)]


def plain(comparator: Comparator, similarity: Tensor) -> Tensor:
    """The comparator's layers one after the other."""
    hidden = similarity[:, None]
    for layer in (comparator.conv1, comparator.conv2):
        hidden = F.max_pool2d(F.relu(layer(hidden)), 2)
    return comparator.output(F.relu(comparator.conv3(hidden))).squeeze(1)


def draw(*shape: int) -> Tensor:
    """Similarities with ties."""
    return torch.rand(shape, generator=torch_rng("maps", *shape), dtype=torch.float64).mul(8).round() / 8


def everywhere(refined: Tensor) -> Tensor:
    """A gradient for every entry."""
    return (refined * torch.randn(refined.shape, generator=torch_rng("weights"), dtype=refined.dtype)).sum()


def in_one_entry(refined: Tensor) -> Tensor:
    """A gradient for one entry."""
    return refined[0, 0, -1]


def of_best_entries(refined: Tensor) -> Tensor:
    """A gradient for one entry of each row."""
    return chamfer(refined).sum()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loss", [everywhere, in_one_entry, of_best_entries])
def test_training_equals_the_layers_one_after_the_other(shape, loss) -> None:
    """Values and all gradients, odd sizes and ties included."""
    comparator = Comparator(NetworkSettings(), generator=torch_rng("comparator")).double()
    for parameter in comparator.parameters():
        parameter.data += torch.randn(parameter.shape, generator=torch_rng("shift"), dtype=torch.float64) / 8
    ours, theirs = draw(*shape).requires_grad_(), draw(*shape).requires_grad_()
    found, wanted = comparator(ours), plain(comparator, theirs)
    assert_close(found, wanted)
    with torch.no_grad():
        assert_close(comparator(ours), wanted)
    inputs = list(comparator.parameters())
    found_gradients = torch.autograd.grad(loss(found), [ours, *inputs])
    wanted_gradients = torch.autograd.grad(loss(wanted), [theirs, *inputs])
    for ours_, theirs_ in zip(found_gradients, wanted_gradients, strict=True):
        assert_close(ours_, theirs_)
    assert all(gradient.abs().sum() > 0 for gradient in wanted_gradients)


def test_no_gradient_gives_zeros() -> None:
    """A loss that depends on no entry."""
    comparator = Comparator(NetworkSettings(), generator=torch_rng("comparator"))
    (comparator(torch.rand(1, 8, 8)) * 0).sum().backward()
    assert all(not parameter.grad.any() for parameter in comparator.parameters())


def test_values_that_relu_cuts_have_no_gradient() -> None:
    """Where all four pooled values are negative or 0."""
    comparator = Comparator(NetworkSettings(), generator=torch_rng("comparator"))
    comparator.conv1.bias.data.fill_(-100)
    similarity = torch.rand(1, 8, 8).requires_grad_()
    comparator(similarity).sum().backward()
    assert not similarity.grad.any()
    assert not comparator.conv1.weight.grad.any()


def test_training_in_bfloat16() -> None:
    """Under autocast all layers compute in it, and gradients come in the weights' own dtype."""
    comparator = Comparator(NetworkSettings(), generator=torch_rng("comparator"))
    similarity = torch.rand(2, 12, 16, generator=torch_rng("maps"))
    with torch.autocast("cpu", torch.bfloat16):
        found = comparator(similarity)
    assert found.dtype == torch.bfloat16
    assert_close(found.float(), comparator(similarity), rtol=0, atol=0.02)
    found.float().sum().backward()
    assert comparator.conv1.weight.grad.dtype == torch.float32


def test_kernels_equal_the_plain_path_under_masks() -> None:
    """Values and gradients of clips of different lengths in one batch."""
    comparator = Comparator(NetworkSettings(), generator=torch_rng("comparator")).double()
    rows, columns = (
        torch.arange(size) < torch.tensor(lengths)[:, None] for size, lengths in ((9, (9, 4)), (8, (5, 8)))
    )
    found = draw(2, 9, 8).requires_grad_()
    wanted = found.detach().clone().requires_grad_()
    everywhere(comparator(found, rows, columns)).backward()
    gradients = [parameter.grad.clone() for parameter in comparator.parameters()]
    comparator.zero_grad()
    half = halve_map_mask((rows, columns))
    mask = rows[:, :, None] & columns[:, None]
    refined = comparator._refine((wanted * mask)[:, None], half, halve_map_mask(half))[:, 0]
    rows, columns = halve_map_mask(half)
    everywhere(refined * (rows[:, :, None] & columns[:, None])).backward()
    assert_close(found.grad, wanted.grad)
    assert_close(gradients, [parameter.grad for parameter in comparator.parameters()])


@pytest.mark.parametrize("shape", [(2, 3, 8, 6), (1, 2, 5, 8), (2, 4, 9, 7), (1, 1, 2, 2)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_pool_and_rectify_equals_pooling_and_relu(shape: tuple[int, ...], memory_format: torch.memory_format) -> None:
    """Odd sizes and values that ReLU cuts are included."""
    maps = torch.randn(shape, generator=torch_rng("maps", *shape)).contiguous(memory_format=memory_format)
    assert torch.equal(pool_and_rectify(maps), F.relu(F.max_pool2d(maps, 2)))


def test_not_a_number_stays() -> None:
    """A broken value is not hidden by the maximum."""
    maps = torch.full((1, 1, 2, 2), 1.0)
    maps[0, 0, 1, 0] = torch.nan
    assert pool_and_rectify(maps).isnan().all()
