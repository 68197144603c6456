"""TopK-Chamfer against loops written from Eq. 3 and 5, its limits, masks and bad input."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torch.testing import assert_close

from hapvr.model.similarity import MAX_BLOCK_FRAMES, chamfer, frame_similarity
from hapvr.seeding import torch_rng

RATES = st.sampled_from([0.0, 0.1, 0.25, 0.34, 0.5, 0.9, 1.0])
SIZES = st.integers(1, 7)


def draw(*parts: int | str, shape: tuple[int, ...]) -> Tensor:
    """Numbers in [-1, 1] in float64."""
    return torch.rand(shape, generator=torch_rng("similarity", *parts), dtype=torch.float64) * 2 - 1


def loop_chamfer(rows: list[list[float]], rate: float) -> float:
    """Per row the mean of the K largest, then the mean over rows."""
    means = []
    for row in rows:
        count = max(round(rate * len(row)), 1)
        means.append(sum(sorted(row, reverse=True)[:count]) / count)

    return sum(means) / len(means)


def test_chamfer_by_hand() -> None:
    """Row maxima 0.9 and 0.4 average 0.65; the top two of each 0.8 and 0.3; all of them 0.4333."""
    similarity = torch.tensor([[0.9, 0.7, 0.0], [0.2, 0.4, 0.4]], dtype=torch.float64)
    assert chamfer(similarity, rate=0.0).item() == pytest.approx(0.65)
    assert chamfer(similarity, rate=0.6).item() == pytest.approx(0.6)
    assert chamfer(similarity, rate=1.0).item() == pytest.approx(similarity.mean().item())


@given(rate=RATES, rows=SIZES, columns=SIZES, symmetric=st.booleans(), seed=st.integers(0, 999))
def test_chamfer_equals_the_loop(
    rate: float, rows: int, columns: int, symmetric: bool, seed: int
) -> None:
    """In both directions when symmetric, each with the same rate."""
    similarity = draw(seed, shape=(rows, columns))
    expected = loop_chamfer(similarity.tolist(), rate)
    if symmetric:
        expected = (expected + loop_chamfer(similarity.T.tolist(), rate)) / 2
    assert chamfer(similarity, rate=rate, symmetric=symmetric).item() == pytest.approx(expected)


@pytest.mark.parametrize("rate", [0.0, 0.10, 0.34, 1.0])
@pytest.mark.parametrize("symmetric", [False, True])
def test_frame_similarity_equals_the_loop(rate: float, symmetric: bool) -> None:
    """Each pair of frames by itself: the products of their regions, then Chamfer."""
    query = draw("query", shape=(2, 3, 9, 5))
    reference = draw("reference", shape=(3, 4, 7, 5))
    similarities = frame_similarity(query, reference, rate=rate, symmetric=symmetric)
    assert similarities.shape == (2, 3, 3, 4)
    for q, n, i, j in torch.cartesian_prod(*map(torch.arange, similarities.shape)).tolist():
        regions = query[q, i] @ reference[n, j].T
        expected = chamfer(regions, rate=rate, symmetric=symmetric)
        assert_close(similarities[q, n, i, j], expected)


@pytest.mark.parametrize("rate", [0.10, 0.34])
def test_frame_similarity_in_blocks_equals_the_whole(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Value and gradients do not depend on how much is held at once."""
    similarities_and_gradients = []
    for limit in (112, 4):
        monkeypatch.setitem(MAX_BLOCK_FRAMES, "cpu", limit)
        query = draw("query", shape=(3, 5, 9, 4)).requires_grad_()
        reference = draw("reference", shape=(2, 6, 9, 4)).requires_grad_()
        similarity = frame_similarity(query, reference, rate=rate)
        similarity.square().sum().backward()
        similarities_and_gradients.append((similarity.detach(), query.grad, reference.grad))

    assert_close(similarities_and_gradients[0], similarities_and_gradients[1])


@pytest.mark.parametrize("limit", [112, 6], ids=["one block", "many blocks"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options", [{"rate": 0.0}, {"rate": 1.0}, {"rate": 0.34}, {"rate": 0.0, "symmetric": True}]
)
def test_a_batch_with_itself_equals_two_batches(
    options: dict[str, Any], dtype: torch.dtype, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the products give all similarities and gradients, over blocks of any size."""
    first = draw("clips", shape=(5, 7, 9, 4)).to(dtype).requires_grad_()
    second = first.detach().clone().requires_grad_()
    weights = draw("weights", shape=(5, 5, 7, 7)).to(dtype)
    monkeypatch.setitem(MAX_BLOCK_FRAMES, "cpu", limit)
    actual = frame_similarity(first, first, **options)
    wanted = frame_similarity(second, second.view_as(second), **options)
    (actual * weights).sum().backward()
    (wanted * weights).sum().backward()
    assert_close(actual, wanted)
    assert_close(first.grad, second.grad)


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_frame_similarity_passes_the_gradient_check(rate: float) -> None:
    """The gradients are those of finite differences."""
    query = draw("query", shape=(1, 2, 3, 4)).requires_grad_()
    reference = draw("reference", shape=(2, 2, 3, 4)).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda q, r: frame_similarity(q, r, rate=rate), (query, reference)
    )
