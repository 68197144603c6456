"""The kernel for clips against themselves, against the plain torch path, which is that of other devices."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from hapvr.model.kernels import frame_similarity as kernel
from hapvr.model.similarity import frame_similarity
from hapvr.seeding import torch_rng


def draw(name: str, *, shape: tuple[int, ...]) -> Tensor:
    """Numbers in [-1, 1] in float64."""
    return torch.rand(shape, generator=torch_rng("similarity", name), dtype=torch.float64) * 2 - 1


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_clips_against_themselves_equal_clips_against_copies(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients do not depend on products serving both of their pairs; blocks of 7 frames, the last of 6."""
    monkeypatch.setattr(kernel, "BLOCK_REGIONS", 7 * 5)
    own = draw("own", shape=(5, 4, 5, 6)).requires_grad_()
    copied = own.detach().clone().requires_grad_()
    weights = draw("weights", shape=(5, 5, 4, 4))
    first, second = frame_similarity(own, own, rate=rate), frame_similarity(copied, copied * 1, rate=rate)
    assert_close(first, second)
    (first * weights).sum().backward()
    (second * weights).sum().backward()
    assert_close(own.grad, copied.grad)


@pytest.mark.parametrize("block_regions", [3, 9, 2**10])
def test_clips_against_themselves_pass_the_gradient_check(block_regions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients are those of finite differences, whatever the blocks."""
    monkeypatch.setattr(kernel, "BLOCK_REGIONS", block_regions)
    clips = draw("own", shape=(3, 2, 3, 4)).requires_grad_()
    assert torch.autograd.gradcheck(lambda c: frame_similarity(c, c, rate=0.0), (clips,))


def test_clips_against_themselves_in_bfloat16() -> None:
    """Autocast multiplies in bfloat16 and leaves similarities in float32; the gradients stay close."""
    exact = draw("own", shape=(3, 4, 9, 16)).float().requires_grad_()
    short = exact.detach().clone().requires_grad_()
    frame_similarity(exact, exact, rate=0.0).mean().backward()
    with torch.autocast("cpu", torch.bfloat16):
        similarity = frame_similarity(short, short, rate=0.0)
    similarity.mean().backward()
    assert similarity.dtype == short.grad.dtype == torch.float32
    assert_close(similarity, frame_similarity(exact, exact, rate=0.0), atol=0.05, rtol=0.02)
    assert torch.nn.functional.cosine_similarity(short.grad.flatten(), exact.grad.flatten(), dim=0) > 0.99


def test_scores_do_not_depend_on_packed_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of torch without oneDNN's packed product multiplies alike, through `torch.mm`."""
    rows, columns = draw("rows", shape=(5, 16)).float(), draw("columns", shape=(7, 16)).float()
    packed = kernel.packed_matmul(columns, num_rows=8)(rows)
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    assert_close(kernel.packed_matmul(columns, num_rows=8)(rows), packed)
    assert_close(packed, rows @ columns.T)
