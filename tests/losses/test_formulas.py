"""Every loss on similarities and ternary labels against loops written from its paper, one row or
pair at a time."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from hapvr.losses.objective import (
    blackbox_ap,
    circle,
    contrastive,
    fast_ap,
    hard_negative,
    infonce,
    mean_absolute_error,
    mean_squared_error,
    quadlinear,
    quadlinear_ap,
    quantized_ap,
    self_similarity,
    smooth_ap,
    triplet,
    without_self,
)
from hapvr.seeding import torch_rng

Row = tuple[list[float], list[int]]
WIDTH = st.floats(0.01, 1)
SMALL = st.floats(-2, 2, allow_nan=False)


def batch(*parts: int | str, size: int = 8) -> tuple[Tensor, Tensor]:
    """Similarities in (0, 1) in float64 and ternary labels; the last rows lack a positive and a
    negative."""
    generator = torch_rng("formulas", *parts)
    similarity = torch.rand(size, size, generator=generator, dtype=torch.float64)
    labels = torch.randint(-1, 2, (size, size), generator=generator, dtype=torch.int8)
    labels[:, 0] = 1
    labels[:, 1] = -1
    labels[-1].clamp_(max=0)
    labels[-2].clamp_(min=0)
    return similarity, labels


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def places(row: Row, kind: int) -> list[int]:
    return [place for place, label in enumerate(row[1]) if label == kind]


def scores(row: Row, kind: int) -> list[float]:
    return [row[0][place] for place in places(row, kind)]


def of_smooth_ap(row: Row, temperature: float) -> float:
    """1 - AP with sigmoids for steps."""
    total = []
    for i in places(row, 1):
        above = {
            j: 1 / (1 + math.exp((row[0][i] - s) / temperature))
            for j, s in enumerate(row[0])
            if j != i
        }
        among = 1 + sum(above[j] for j in places(row, 1) if j != i)
        total.append(among / (among + sum(above[j] for j in places(row, -1))))

    return 1 - mean(total)


def of_quantized_ap(row: Row, num_bins: int) -> float:
    """1 - sum over bins of precision times gain in recall, with triangular bins on [0, 1]."""
    width = 1 / (num_bins - 1)
    hits = 0.0
    seen = 0.0
    average_precision = 0.0
    for number in range(num_bins):
        edge = 1 - number * width
        shares = {
            kind: [max(0.0, 1 - abs(s - edge) / width) for s in scores(row, kind)]
            for kind in (1, -1)
        }
        hits += sum(shares[1])
        seen += sum(shares[1]) + sum(shares[-1])
        average_precision += sum(shares[1]) / len(shares[1]) * (hits / seen if seen > 0 else 0.0)

    return 1 - average_precision


def of_fast_ap(row: Row, num_bins: int) -> float:
    """1 - sum over l of h+_l H+_l / (N+ H_l), on squared distances of unit vectors in [0, 4]
    (FastAP, section 3). An entry counts linearly for the two of the L + 1 ends of L intervals that
    it lies between."""
    width = 4 / num_bins
    positives = [0.0] * (num_bins + 1)
    every = [0.0] * (num_bins + 1)
    for score, kind in zip(*row, strict=True):
        place = 4 * (1 - score) / width
        lower = min(int(place), num_bins - 1)
        for end, part in ((lower, 1 - (place - lower)), (lower + 1, place - lower)):
            every[end] += part if kind else 0.0
            positives[end] += part if kind == 1 else 0.0

    terms = [
        positives[end] * sum(positives[: end + 1]) / sum(every[: end + 1])
        for end in range(num_bins + 1)
        if sum(every[: end + 1]) > 0
    ]
    return 1 - sum(terms) / len(places(row, 1))


def of_blackbox_ap(row: Row, margin: float) -> float:
    """1 - AP of exact ranks, after the margin."""
    shifted = {i: row[0][i] - kind * margin / 2 for i, kind in enumerate(row[1]) if kind}
    order = [row[1][i] for i in sorted(shifted, key=lambda i: -shifted[i])]
    return 1 - mean(
        [order[: rank + 1].count(1) / (rank + 1) for rank, kind in enumerate(order) if kind == 1]
    )


def surrogate(x: float, delta: float) -> float:
    """R- of HAP-VR Eq. 10."""
    if x >= 0:
        return 2 * x / delta + 1
    return (x / delta + 1) ** 2 if x >= -delta else 0.0


def of_quadlinear_ap(row: Row, delta: float, rho: float) -> float:
    """HAP-VR Eq. 11."""
    terms = []
    for own in scores(row, 1):
        reach = sum(surrogate(s - own, delta) for s in scores(row, -1))
        x = reach / (1 + rho * sum(s > own for s in scores(row, 1)))
        terms.append(x / (1 + x))

    return mean(terms)


def of_infonce(row: Row, temperature: float) -> float:
    """S2VS Eq. 1."""
    negatives = sum(math.exp(s / temperature) for s in scores(row, -1))
    powers = [math.exp(s / temperature) for s in scores(row, 1)]
    return mean([-math.log(power / (power + negatives)) for power in powers])


def of_triplet(row: Row, margin: float) -> float:
    """Each positive against the most similar negative."""
    hardest = max(scores(row, -1), default=-math.inf)
    return mean([max(0.0, hardest - own + margin) for own in scores(row, 1)])


def of_circle(row: Row, margin: float, scale: float) -> float:
    """log(1 + sum over negatives * sum over positives), with the pairs' weights."""
    push = sum(math.exp(scale * max(0.0, s + margin) * (s - margin)) for s in scores(row, -1))
    pull = sum(
        math.exp(-scale * max(0.0, 1 + margin - s) * (s - 1 + margin)) for s in scores(row, 1)
    )
    return math.log1p(push * pull)


BY_ROW: list[tuple[Callable[..., Tensor], Callable[..., float], dict[str, Any]]] = [
    *((smooth_ap, of_smooth_ap, {"temperature": value}) for value in (0.01, 0.2)),
    *((quantized_ap, of_quantized_ap, {"num_bins": value}) for value in (2, 10, 20)),
    *((fast_ap, of_fast_ap, {"num_bins": value}) for value in (1, 5, 10)),
    *((blackbox_ap, of_blackbox_ap, {"margin": value}) for value in (0.0, 0.1)),
    *(
        (quadlinear_ap, of_quadlinear_ap, {"delta": d, "rho": r})
        for d, r in ((0.05, 0.1), (0.05, 5.0), (0.3, 0.0))
    ),
    *((infonce, of_infonce, {"temperature": value}) for value in (0.03, 0.5)),
    (triplet, of_triplet, {"margin": 0.1}),
    *((circle, of_circle, {"margin": m, "scale": s}) for m, s in ((0.25, 8.0), (0.4, 2.0))),
]


@pytest.mark.parametrize("self_pairs", [True, False])
@pytest.mark.parametrize(("loss", "formula", "options"), BY_ROW)
def test_losses_of_rows_equal_the_loop(
    loss: Callable[..., Tensor],
    formula: Callable[..., float],
    options: dict[str, Any],
    self_pairs: bool,
) -> None:
    """The mean over rows that have a positive, for the circle loss a negative too; a row by
    itself."""
    similarity, labels = batch("rows")
    labels = labels if self_pairs else without_self(labels)
    table = [row for row in zip(similarity.tolist(), labels.tolist(), strict=True) if 1 in row[1]]
    table = [row for row in table if -1 in row[1]] if loss is circle else table
    assert loss(similarity, labels, **options).item() == pytest.approx(
        mean([formula(row, **options) for row in table])
    )
    row_loss = formula((similarity[1].tolist(), labels[1].tolist()), **options)
    assert loss(similarity[1:2], labels[1:2], **options).item() == pytest.approx(row_loss)


def test_infonce_over_pairs_is_the_mean_of_all_positives() -> None:
    """S2VS Eq. 2: a query with many positives weighs as many times."""
    similarity, labels = batch("pairs of infonce")
    losses: list[float] = []
    for row in zip(similarity.tolist(), labels.tolist(), strict=True):
        negatives = sum(math.exp(s / 0.3) for s in scores(row, -1))
        powers = [math.exp(s / 0.3) for s in scores(row, 1)]
        losses += [-math.log(power / (power + negatives)) for power in powers]

    loss = infonce(similarity, labels, temperature=0.3, mean="pairs")
    assert loss.item() == pytest.approx(mean(losses))
    assert loss.item() != pytest.approx(infonce(similarity, labels, temperature=0.3).item())


@pytest.mark.parametrize(("loss", "power"), [(mean_absolute_error, 1), (mean_squared_error, 2)])
def test_mean_errors_of_pairs_equal_the_loop(loss: Callable[..., Tensor], power: int) -> None:
    similarity, labels = batch("pairs")
    positives = similarity[labels > 0].tolist()
    negatives = similarity[labels < 0].tolist()
    expected = mean([(1 - s) ** power for s in positives] + [s**power for s in negatives])
    assert loss(similarity, labels).item() == pytest.approx(expected)


@pytest.mark.parametrize("margin", [0.3, 1.0])
def test_the_contrastive_loss_equals_the_loop(margin: float) -> None:
    """Its positives and negatives weigh the same however many there are."""
    similarity, labels = batch("pairs")
    attract = mean([(1 - s) ** 2 for s in similarity[labels > 0].tolist()])
    repel = mean([max(0.0, margin - 1 + s) ** 2 for s in similarity[labels < 0].tolist()])
    loss = contrastive(similarity, labels, margin=margin).item()
    assert loss == pytest.approx((attract + repel) / 2)


def test_sshn_by_hand() -> None:
    """-log of the diagonal, and -log of one minus each row's largest negative; a row without one is
    left out."""
    similarity = torch.tensor(
        [[0.9, 0.5, 0.2], [0.4, 0.8, 0.7], [0.3, 0.6, 1.0]], dtype=torch.float64
    )
    labels = torch.tensor([[1, -1, -1], [-1, 1, 1], [0, 1, 1]], dtype=torch.int8)
    assert self_similarity(similarity, labels).item() == pytest.approx(
        -(math.log(0.9) + math.log(0.8)) / 3
    )
    assert hard_negative(similarity, labels).item() == pytest.approx(
        -(math.log(0.5) + math.log(0.6)) / 2
    )


@pytest.mark.parametrize("loss", [self_similarity, hard_negative])
def test_sshn_at_its_clamps(loss: Callable[..., Tensor]) -> None:
    """A lost self match and a perfect negative cost -log(0.001) each, not infinity."""
    lost = loss(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[1, -1], [-1, 1]]))
    assert lost.item() == pytest.approx(-math.log(1e-3))


def test_infonce_at_its_limits() -> None:
    """A query without negatives has no loss and no gradient; exponentials beyond float32 stay
    inside the logarithm."""
    similarity = torch.tensor([[0.0, 1.0], [0.4, 0.2]], requires_grad=True)
    infonce(similarity, torch.ones(2, 2, dtype=torch.int8), temperature=0.03).backward()
    assert not similarity.grad.any()
    loss = infonce(similarity[:1], torch.tensor([[1, -1]], dtype=torch.int8), temperature=1e-4)
    loss.backward()
    assert loss.item() == pytest.approx(1e4)
    assert torch.isfinite(similarity.grad).all()


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (smooth_ap, {"temperature": 0.2}),
        (quantized_ap, {"num_bins": 5}),
        (fast_ap, {"num_bins": 5}),
        (quadlinear_ap, {"delta": 0.2}),
        (infonce, {"temperature": 0.3}),
        (hard_negative, {}),
        (self_similarity, {}),
        (mean_absolute_error, {}),
        (mean_squared_error, {}),
        (contrastive, {}),
        (triplet, {}),
    ],
)
def test_gradients_are_those_of_finite_differences(
    loss: Callable[..., Tensor], options: dict[str, Any]
) -> None:
    """Of all losses but BlackBox-AP and the circle loss, which are not meant to be."""
    similarity, labels = batch("gradient", size=5)
    similarity.clamp_(0.01, 0.99).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: loss(s, labels, **options), similarity)


@pytest.mark.parametrize(("strength", "expected"), [(2.0, [-0.5, 0.5]), (0.2, [0.0, 0.0])])
def test_blackbox_ap_gradient_by_hand(strength: float, expected: list[float]) -> None:
    """One positive, 0.1 below one negative: the gradient compares the ranks (2, 1) with those of
    moved scores.

    The loss 1 - rank among positives / rank is 1/2 and its slope by the rank 1/4. At strength 2 the
    positive's score moves by 1/2, past the negative's: ranks become (1, 2). At strength 0.2 it
    moves by 0.05: nothing changes."""
    labels = torch.tensor([[1, -1]], dtype=torch.int8)
    similarity = torch.tensor([[0.5, 0.6]], dtype=torch.float64, requires_grad=True)
    blackbox_ap(similarity, labels, strength=strength, margin=0.0).backward()
    assert similarity.grad.tolist() == [pytest.approx(expected)]


def test_circle_gradient_takes_the_weights_as_constants() -> None:
    """For one positive p and one negative n: sigmoid(z) * scale * (weight of n, -weight of p)."""
    similarity = torch.tensor([[0.6, 0.5]], dtype=torch.float64, requires_grad=True)
    circle(similarity, torch.tensor([[1, -1]], dtype=torch.int8), margin=0.25, scale=4.0).backward()
    pull = 1.25 - 0.6
    push = 0.5 + 0.25
    slope = 4 / (1 + math.exp(4 * pull * (0.6 - 0.75) - 4 * push * (0.5 - 0.25)))
    assert similarity.grad[0].tolist() == pytest.approx([-slope * pull, slope * push])


@given(x=SMALL, y=SMALL, delta=WIDTH, part=st.floats(0, 1))
def test_quadlinear_is_a_convex_bound_of_the_step(
    x: float, y: float, delta: float, part: float
) -> None:
    """R- equals its formula, is at least the Heaviside function, never falls, and no chord passes
    below the curve."""
    low = min(x, y)
    high = max(x, y)
    points = torch.tensor([low, high, part * low + (1 - part) * high], dtype=torch.float64)
    at_low, at_high, between = quadlinear(points, delta=delta).tolist()
    assert at_low == pytest.approx(surrogate(low, delta), abs=1e-9)
    assert at_low >= (1.0 if low > 0 else 0.0)
    assert at_low <= at_high + 1e-9
    assert between <= part * at_low + (1 - part) * at_high + 1e-7
