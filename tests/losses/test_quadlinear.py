"""QuadLinear-AP: hand arithmetic, a loop written from Eq. 11, gradients, and the properties of the surrogate."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from hapvr.losses import rows
from hapvr.losses.quadlinear import quadlinear, quadlinear_ap
from hapvr.losses.rows import without_self
from hapvr.seeding import torch_rng

SMALL = st.floats(-2, 2, allow_nan=False)
WIDTH = st.floats(0.01, 1)


def surrogate(x: float, delta: float) -> float:
    """R- of Eq. 10, one number at a time."""
    if x >= 0:
        return 2 * x / delta + 1
    return (x / delta + 1) ** 2 if x >= -delta else 0.0


def loop_quadlinear_ap(similarity: Tensor, labels: Tensor, *, delta: float, rho: float) -> float:
    """Eq. 11 for every query, positive and other in turn."""
    losses = []
    for scores, kinds in zip(similarity.tolist(), labels.tolist(), strict=True):
        positives = [i for i, kind in enumerate(kinds) if kind == 1]
        negatives = [j for j, kind in enumerate(kinds) if kind == -1]
        if not positives:
            continue
        total = 0.0
        for i in positives:
            reach = sum(surrogate(scores[j] - scores[i], delta) for j in negatives)
            above = sum(1 for j in positives if j != i and scores[j] > scores[i])
            x = reach / (1 + rho * above)
            total += x / (1 + x)
        losses.append(total / len(positives))
    return sum(losses) / len(losses)


def batch(name: str, *, num_rows: int = 7, size: int = 9) -> tuple[Tensor, Tensor]:
    """Similarities in [0, 1] in float64 and ternary labels; the last row has no positive."""
    generator = torch_rng("quadlinear", name)
    similarity = torch.rand(num_rows, size, generator=generator, dtype=torch.float64)
    labels = torch.randint(-1, 2, (num_rows, size), generator=generator, dtype=torch.int8)
    labels[:, 0] = 1
    labels[-1].clamp_(max=0)
    return similarity, labels


def test_quadlinear_ap_by_hand() -> None:
    """One positive at 0.5, negatives at 0.525 and 0.475, delta 0.05: 2 + 0.25 is 2.25, and 2.25 / 3.25 the loss."""
    similarity = torch.tensor([[0.5, 0.525, 0.475, 0.9]], dtype=torch.float64)
    labels = torch.tensor([[1, -1, -1, 0]], dtype=torch.int8)
    assert quadlinear_ap(similarity, labels).item() == pytest.approx(2.25 / 3.25)


def test_quadlinear_ap_forgives_a_positive_with_others_above() -> None:
    """A positive above weakens a negative's reach by rho: (1 + 2) / (1 + 0.5) for the lower, 1 / 1 for the upper."""
    similarity = torch.tensor([[0.2, 0.3, 0.3]], dtype=torch.float64)
    labels = torch.tensor([[1, 1, -1]], dtype=torch.int8)
    found = quadlinear_ap(similarity, labels, delta=0.1, rho=0.5)
    assert found.item() == pytest.approx(((3 / 1.5) / (1 + 3 / 1.5) + 1 / 2) / 2)


@pytest.mark.parametrize(("delta", "rho"), [(0.05, 0.10), (0.05, 5.0), (0.3, 0.0)])
@pytest.mark.parametrize("include_self", [False, True])
def test_quadlinear_ap_equals_the_loop(delta: float, rho: float, include_self: bool) -> None:
    """The batched form equals the formula, with the self pair as a positive or left out."""
    similarity, labels = batch("loop", num_rows=9)
    labels = labels if include_self else without_self(labels)
    found = quadlinear_ap(similarity, labels, delta=delta, rho=rho)
    assert found.item() == pytest.approx(loop_quadlinear_ap(similarity, labels, delta=delta, rho=rho), rel=1e-9)


def test_quadlinear_ap_passes_the_gradient_check() -> None:
    """The gradient is that of finite differences."""
    similarity, labels = batch("gradient", num_rows=4, size=6)
    assert torch.autograd.gradcheck(lambda s: quadlinear_ap(s, labels, delta=0.2), similarity.requires_grad_())


def test_quadlinear_ap_in_chunks_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Value and gradient do not depend on how many rows are done at once."""
    similarity, labels = batch("chunks")
    found = []
    for limit in (rows.MAX_CHUNK_ELEMENTS, 2 * 81):
        monkeypatch.setattr(rows, "MAX_CHUNK_ELEMENTS", limit)
        scores = similarity.clone().requires_grad_()
        loss = quadlinear_ap(scores, labels)
        loss.backward()
        found.append((loss.detach(), scores.grad))
    assert_close(found[0], found[1])


@given(x=SMALL, delta=WIDTH)
def test_quadlinear_bounds_the_step_from_above(x: float, delta: float) -> None:
    """R- is at least the Heaviside function it stands for, and equals the formula."""
    value = quadlinear(torch.tensor(x, dtype=torch.float64), delta=delta).item()
    assert value >= (1.0 if x > 0 else 0.0)
    assert value == pytest.approx(surrogate(x, delta), abs=1e-9)


@given(x=SMALL, y=SMALL, delta=WIDTH, part=st.floats(0, 1))
def test_quadlinear_is_monotone_and_convex(x: float, y: float, delta: float, part: float) -> None:
    """Larger differences never cost less, and no chord passes below the curve."""
    low, high = min(x, y), max(x, y)
    points = torch.tensor([low, high, part * low + (1 - part) * high], dtype=torch.float64)
    at_low, at_high, between = quadlinear(points, delta=delta).tolist()
    assert at_low <= at_high + 1e-9
    assert between <= part * at_low + (1 - part) * at_high + 1e-7


@given(delta=WIDTH)
def test_quadlinear_is_smooth_at_both_joints(delta: float) -> None:
    """Value and slope agree from both sides at 0 and at -delta."""
    step = 1e-7 * delta
    joints = torch.tensor([-delta, 0.0], dtype=torch.float64)
    sides = torch.stack([joints - step, joints + step]).requires_grad_()
    values = quadlinear(sides, delta=delta)
    (slopes,) = torch.autograd.grad(values.sum(), sides)
    assert_close(values[0], values[1], atol=1e-5, rtol=0)
    assert_close(slopes[0] * delta, slopes[1] * delta, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rho", [0.0, 0.1, 5.0])
def test_a_single_row_equals_the_loop(rho: float) -> None:
    """A row by itself is computed from its positives alone, with the values and gradients of a row among others."""
    similarity, labels = batch("one", num_rows=5, size=40)
    one, many = similarity[:1].clone().requires_grad_(), similarity[:1].repeat(2, 1).requires_grad_()
    loss = quadlinear_ap(one, labels[:1], rho=rho)
    assert float(loss.detach()) == pytest.approx(loop_quadlinear_ap(similarity[:1], labels[:1], delta=0.05, rho=rho))
    loss.backward()
    quadlinear_ap(many, labels[:1].repeat(2, 1), rho=rho).backward()
    assert one.grad is not None
    assert many.grad is not None
    assert_close(one.grad[0], many.grad.sum(0))
    nothing = quadlinear_ap(one, torch.full_like(labels[:1], -1), rho=rho)
    assert float(nothing.detach()) == 0
