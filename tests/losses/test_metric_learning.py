"""MAE, MSE, contrastive, triplet and circle loss against loops written from their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hapvr.errors import ArgumentError
from hapvr.losses.metric_learning import circle, contrastive, mean_absolute_error, mean_squared_error, triplet
from hapvr.seeding import torch_rng


def batch(name: str, *, num_rows: int = 6, size: int = 8) -> tuple[Tensor, Tensor]:
    """Similarities in [0, 1] in float64 and ternary labels; the last two rows lack a positive and a negative."""
    generator = torch_rng("pairwise", name)
    similarity = torch.rand(num_rows, size, generator=generator, dtype=torch.float64)
    labels = torch.randint(-1, 2, (num_rows, size), generator=generator, dtype=torch.int8)
    labels[:, 0], labels[:, 1] = 1, -1
    labels[-1].clamp_(max=0)
    labels[-2].clamp_(min=0)
    return similarity, labels


def mean(values: list[float]) -> float:
    """The plain mean."""
    return sum(values) / len(values)


def scores_by_label(similarity: Tensor, labels: Tensor) -> list[tuple[list[float], list[float]]]:
    """Scores of the positives and of the negatives of each row."""
    found = []
    for scores, kinds in zip(similarity.tolist(), labels.tolist(), strict=True):
        labelled = list(zip(scores, kinds, strict=True))
        found.append(([s for s, kind in labelled if kind == 1], [s for s, kind in labelled if kind == -1]))
    return found


def loop_regression(similarity: Tensor, labels: Tensor, power: int) -> float:
    """Distance to 1 of positives and to 0 of negatives."""
    rows = scores_by_label(similarity, labels)
    return mean([abs(1 - s) ** power for p, _ in rows for s in p] + [abs(s) ** power for _, n in rows for s in n])


def loop_contrastive(similarity: Tensor, labels: Tensor, margin: float) -> float:
    """Half the mean squared distance of positives and half that of negatives within the margin."""
    rows = scores_by_label(similarity, labels)
    attract = mean([(1 - s) ** 2 for positives, _ in rows for s in positives])
    repel = mean([max(0.0, margin - (1 - s)) ** 2 for _, negatives in rows for s in negatives])
    return (attract + repel) / 2


def loop_triplet(similarity: Tensor, labels: Tensor, margin: float, choice: str) -> float:
    """Each positive of each query against the negatives the choice leaves."""

    def hinge(positive: float, negatives: list[float]) -> float:
        below = [s for s in negatives if s < positive]
        if not negatives:
            return 0.0
        chosen = {"all": negatives, "hardest": [max(negatives)], "semi_hard": [max(below or negatives)]}[choice]
        return mean([max(0.0, s - positive + margin) for s in chosen])

    return mean([mean([hinge(s, n) for s in p]) for p, n in scores_by_label(similarity, labels) if p])


def loop_circle(similarity: Tensor, labels: Tensor, margin: float, scale: float) -> float:
    """log(1 + sum over negatives * sum over positives), with the pairs' weights."""
    losses = []
    for positives, negatives in scores_by_label(similarity, labels):
        if positives and negatives:
            push = sum(math.exp(scale * max(0.0, s + margin) * (s - margin)) for s in negatives)
            pull = sum(math.exp(-scale * max(0.0, 1 + margin - s) * (s - 1 + margin)) for s in positives)
            losses.append(math.log1p(push * pull))
    return mean(losses)


@pytest.mark.parametrize(("loss", "power"), [(mean_absolute_error, 1), (mean_squared_error, 2)])
def test_regression_equals_the_loop(loss: Callable[[Tensor, Tensor], Tensor], power: int) -> None:
    """Ignored pairs do not count."""
    similarity, labels = batch("regression")
    assert loss(similarity, labels).item() == pytest.approx(loop_regression(similarity, labels, power))


@pytest.mark.parametrize("margin", [0.3, 1.0])
def test_contrastive_equals_the_loop(margin: float) -> None:
    """Positives and negatives weigh the same, however many there are."""
    similarity, labels = batch("contrastive")
    found = contrastive(similarity, labels, margin=margin).item()
    assert found == pytest.approx(loop_contrastive(similarity, labels, margin))


@pytest.mark.parametrize("choice", ["hardest", "semi_hard", "all"])
def test_triplet_equals_the_loop(choice: str) -> None:
    """Each choice of negatives picks the ones it says."""
    similarity, labels = batch("triplet")
    found = triplet(similarity, labels, margin=0.1, negatives=choice).item()
    assert found == pytest.approx(loop_triplet(similarity, labels, 0.1, choice))


def test_triplet_choices_by_hand() -> None:
    """A positive at 0.5 with negatives at 0.7, 0.4 and 0.0, margin 0.2: 0.4, 0.1, and the mean of 0.4, 0.1 and 0."""
    similarity = torch.tensor([[0.5, 0.7, 0.4, 0.0]], dtype=torch.float64)
    labels = torch.tensor([[1, -1, -1, -1]], dtype=torch.int8)
    found = {choice: triplet(similarity, labels, negatives=choice).item() for choice in ("hardest", "semi_hard", "all")}
    assert found == pytest.approx({"hardest": 0.4, "semi_hard": 0.1, "all": 0.5 / 3})


@pytest.mark.parametrize(("margin", "scale"), [(0.25, 8.0), (0.4, 2.0)])
def test_circle_equals_the_loop(margin: float, scale: float) -> None:
    """Rows without a positive or without a negative are left out."""
    similarity, labels = batch("circle")
    found = circle(similarity, labels, margin=margin, scale=scale).item()
    assert found == pytest.approx(loop_circle(similarity, labels, margin, scale))


@pytest.mark.parametrize(
    "loss",
    [
        mean_absolute_error,
        mean_squared_error,
        contrastive,
        triplet,
        lambda s, y: triplet(s, y, negatives="semi_hard"),
        lambda s, y: triplet(s, y, negatives="all"),
    ],
)
def test_pairwise_losses_pass_the_gradient_check(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """The gradient is that of finite differences."""
    similarity, labels = batch("gradient")
    assert torch.autograd.gradcheck(lambda s: loss(s, labels), similarity.requires_grad_())


def test_circle_gradient_takes_the_weights_as_constants() -> None:
    """For one positive p and one negative n: sigmoid(z) * scale * (weight of n, -weight of p)."""
    similarity = torch.tensor([[0.6, 0.5]], dtype=torch.float64, requires_grad=True)
    circle(similarity, torch.tensor([[1, -1]], dtype=torch.int8), margin=0.25, scale=4.0).backward()
    pull, push = 1.25 - 0.6, 0.5 + 0.25
    z = 4 * push * (0.5 - 0.25) - 4 * pull * (0.6 - 0.75)
    slope = 4 / (1 + math.exp(-z))
    assert similarity.grad is not None
    assert similarity.grad[0].tolist() == pytest.approx([-slope * pull, slope * push])


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (contrastive, {"margin": 0.0}, "margin: got 0"),
        (triplet, {"margin": -0.1}, "margin: got -0.1"),
        (triplet, {"negatives": "easy"}, "negatives: got 'easy'.*'semi_hard'"),
        (circle, {"scale": 0.0}, "scale: got 0"),
    ],
)
def test_pairwise_losses_refuse_bad_settings(
    loss: Callable[..., Tensor], options: dict[str, float | str], message: str
) -> None:
    """The error names the setting and what is allowed."""
    with pytest.raises(ArgumentError, match=message):
        loss(torch.rand(2, 3), torch.ones(2, 3, dtype=torch.int8), **options)
