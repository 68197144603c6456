"""Smooth-AP, DIR, FastAP and BlackBox-AP against loops written from their papers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from hapvr.errors import ArgumentError
from hapvr.losses.average_precision import blackbox_ap, fast_ap, quantized_ap, smooth_ap
from hapvr.seeding import torch_rng

Row = tuple[list[float], list[int]]


def batch(name: str, *, num_rows: int = 6, size: int = 9) -> tuple[Tensor, Tensor]:
    """Similarities in [0, 1] in float64 and ternary labels; the last row has no positive."""
    generator = torch_rng("average precision", name)
    similarity = torch.rand(num_rows, size, generator=generator, dtype=torch.float64)
    labels = torch.randint(-1, 2, (num_rows, size), generator=generator, dtype=torch.int8)
    labels[:, 0] = 1
    labels[-1].clamp_(max=0)
    return similarity, labels


def rows_of(similarity: Tensor, labels: Tensor) -> list[Row]:
    """Scores and labels of the queries that have a positive."""
    rows = zip(similarity.tolist(), labels.tolist(), strict=True)
    return [(scores, kinds) for scores, kinds in rows if 1 in kinds]


def loop_smooth_ap(row: Row, temperature: float) -> float:
    """1 - AP with sigmoids for steps."""
    scores, kinds = row
    positives = [i for i, kind in enumerate(kinds) if kind == 1]
    total = 0.0
    for i in positives:
        above = {j: 1 / (1 + math.exp((scores[i] - scores[j]) / temperature)) for j in range(len(scores)) if j != i}
        among = 1 + sum(above[j] for j in positives if j != i)
        total += among / (among + sum(above[j] for j, kind in enumerate(kinds) if kind == -1))
    return 1 - total / len(positives)


def loop_quantized_ap(row: Row, num_bins: int) -> float:
    """1 - sum over bins of precision times gain in recall, with triangular bins on [0, 1]."""
    scores, kinds = row
    width = 1 / (num_bins - 1)
    num_positives = kinds.count(1)
    hits = seen = average_precision = 0.0
    for bin_number in range(num_bins):
        centre = 1 - bin_number * width
        shares = [max(0.0, 1 - abs(score - centre) / width) for score in scores]
        here = sum(share for share, kind in zip(shares, kinds, strict=True) if kind == 1)
        hits += here
        seen += sum(share for share, kind in zip(shares, kinds, strict=True) if kind != 0)
        average_precision += here / num_positives * (hits / seen if seen > 0 else 0.0)
    return 1 - average_precision


def loop_fast_ap(row: Row, num_bins: int) -> float:
    """1 - sum over l of h+_l H+_l / (N+ H_l), on squared distances of unit vectors in [0, 4] (FastAP, section 3).

    An entry counts linearly for the two of the L + 1 ends of L intervals that it lies between.
    """
    scores, kinds = row
    width = 4 / num_bins
    positive_histogram, histogram = [0.0] * (num_bins + 1), [0.0] * (num_bins + 1)
    for score, kind in zip(scores, kinds, strict=True):
        place = 4 * (1 - score) / width
        lower = min(int(place), num_bins - 1)
        for end, part in ((lower, 1 - (place - lower)), (lower + 1, place - lower)):
            histogram[end] += part if kind != 0 else 0.0
            positive_histogram[end] += part if kind == 1 else 0.0
    total = 0.0
    for end in range(num_bins + 1):
        if sum(histogram[: end + 1]) > 0:
            total += positive_histogram[end] * sum(positive_histogram[: end + 1]) / sum(histogram[: end + 1])
    return 1 - total / kinds.count(1)


def loop_average_precision(row: Row, margin: float) -> float:
    """1 - AP of exact ranks, after the margin."""
    scores, kinds = row
    shifted = {i: scores[i] - kind * margin / 2 for i, kind in enumerate(kinds) if kind}
    order = sorted(shifted, key=lambda i: -shifted[i])
    hits, total = 0, 0.0
    for rank, i in enumerate(order, start=1):
        if kinds[i] == 1:
            hits += 1
            total += hits / rank
    return 1 - total / hits


@pytest.mark.parametrize("temperature", [0.01, 0.2])
def test_smooth_ap_equals_the_loop(temperature: float) -> None:
    """Queries without a positive are left out."""
    similarity, labels = batch("smooth")
    expected = [loop_smooth_ap(row, temperature) for row in rows_of(similarity, labels)]
    assert smooth_ap(similarity, labels, temperature=temperature).item() == pytest.approx(sum(expected) / len(expected))


@pytest.mark.parametrize("num_bins", [2, 10, 20])
def test_quantized_ap_equals_the_loop(num_bins: int) -> None:
    """Queries without a positive are left out."""
    similarity, labels = batch("quantized")
    expected = [loop_quantized_ap(row, num_bins) for row in rows_of(similarity, labels)]
    assert quantized_ap(similarity, labels, num_bins=num_bins).item() == pytest.approx(sum(expected) / len(expected))


def test_quantized_ap_by_hand() -> None:
    """Bins at 1, 0.5, 0: the positive at 0.5, one negative at 1 and one at 0 give precision 1/2."""
    labels = torch.tensor([[1, -1, -1]], dtype=torch.int8)
    assert quantized_ap(torch.tensor([[0.5, 1.0, 0.0]]), labels, num_bins=3).item() == pytest.approx(0.5)


@pytest.mark.parametrize("num_bins", [1, 5, 10])
def test_fast_ap_equals_the_loop(num_bins: int) -> None:
    """Queries without a positive are left out."""
    similarity, labels = batch("fast")
    expected = [loop_fast_ap(row, num_bins) for row in rows_of(similarity, labels)]
    assert fast_ap(similarity, labels, num_bins=num_bins).item() == pytest.approx(sum(expected) / len(expected))


def test_quantized_ap_on_another_range() -> None:
    """Similarities in [-1, 1] with their range give what the rescaled ones give."""
    similarity, labels = batch("range")
    assert_close(quantized_ap(2 * similarity - 1, labels, lowest=-1.0), quantized_ap(similarity, labels))


@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_blackbox_ap_is_exact(margin: float) -> None:
    """Forward it is average precision itself."""
    similarity, labels = batch("blackbox")
    expected = [loop_average_precision(row, margin) for row in rows_of(similarity, labels)]
    assert blackbox_ap(similarity, labels, margin=margin).item() == pytest.approx(sum(expected) / len(expected))


def test_blackbox_ap_gradient_by_hand() -> None:
    """One positive, 0.1 below one negative: the gradient compares the ranks (2, 1) with those of moved scores.

    The loss 1 - rank among positives / rank is 1/2 and its slope by the rank 1/4. At strength 2 the positive's score
    moves by 1/2, past the negative's: ranks become (1, 2). At strength 0.2 it moves by 0.05: nothing changes.
    """
    labels = torch.tensor([[1, -1]], dtype=torch.int8)
    for strength, expected in ((2.0, [-0.5, 0.5]), (0.2, [0.0, 0.0])):
        similarity = torch.tensor([[0.5, 0.6]], dtype=torch.float64, requires_grad=True)
        loss = blackbox_ap(similarity, labels, strength=strength, margin=0.0)
        loss.backward()
        assert loss.item() == pytest.approx(0.5)
        assert similarity.grad is not None
        assert similarity.grad.tolist() == [pytest.approx(expected)]


@pytest.mark.parametrize("loss", [smooth_ap, quantized_ap, fast_ap])
def test_differentiable_surrogates_pass_the_gradient_check(loss: object) -> None:
    """The gradient is that of finite differences."""
    similarity, labels = batch("gradient", num_rows=3, size=6)
    options = {"temperature": 0.2} if loss is smooth_ap else {"num_bins": 5}
    assert torch.autograd.gradcheck(lambda s: loss(s, labels, **options), similarity.requires_grad_())  # type: ignore[operator]


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (smooth_ap, {"temperature": 0.0}, "temperature: got 0"),
        (blackbox_ap, {"strength": -1.0}, "strength: got -1"),
    ],
)
def test_surrogates_refuse_bad_settings(loss: object, options: dict[str, float], message: str) -> None:
    """The error names the setting and its range."""
    with pytest.raises(ArgumentError, match=message):
        loss(torch.rand(2, 3), torch.ones(2, 3, dtype=torch.int8), **options)  # type: ignore[operator]
