"""Laws that every registered loss obeys, whatever its formula."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from torch.testing import assert_close

from hapvr.losses.objective import RANKING_LOSSES
from hapvr.seeding import torch_rng

AVERAGE_PRECISION = ("fast_ap", "dir", "blackbox_ap", "smooth_ap", "quadlinear_ap")
SEEDS = st.integers(0, 10_000)

every_loss = pytest.mark.parametrize("name", RANKING_LOSSES)


def batch(seed: int, *, num_rows: int = 4, size: int = 7) -> tuple[Tensor, Tensor]:
    """Similarities in [0, 1] in float64 and ternary labels with a positive and a negative in each
    row."""
    generator = torch_rng("laws", seed)
    similarity = torch.rand(num_rows, size, generator=generator, dtype=torch.float64)
    labels = torch.randint(-1, 2, (num_rows, size), generator=generator, dtype=torch.int8)
    labels[:, 0] = 1
    labels[:, 1] = -1
    return similarity, labels


@every_loss
@given(seed=SEEDS)
def test_order_within_and_between_rows_is_irrelevant(name: str, seed: int) -> None:
    """Shuffling queries, or what they are compared with, changes nothing."""
    similarity, labels = batch(seed)
    rows = torch.randperm(4, generator=torch_rng(seed))
    columns = torch.randperm(7, generator=torch_rng(seed, 2))
    loss = RANKING_LOSSES[name]
    assert_close(
        loss(similarity[rows][:, columns], labels[rows][:, columns]), loss(similarity, labels)
    )


@every_loss
@given(seed=SEEDS)
def test_ignored_entries_change_nothing(name: str, seed: int) -> None:
    """Neither the value nor the gradient depends on an entry labelled 0, nor does it get a
    gradient."""
    similarity, labels = batch(seed)
    changed_similarity = torch.where(
        labels == 0, torch.rand(similarity.shape, generator=torch_rng(seed)).double(), similarity
    )
    losses_and_gradients = []
    for scores in (similarity.clone().requires_grad_(), changed_similarity.requires_grad_()):
        loss = RANKING_LOSSES[name](scores, labels)
        loss.backward()
        losses_and_gradients.append((loss.detach(), scores.grad))

    assert_close(losses_and_gradients[0], losses_and_gradients[1])
    assert not losses_and_gradients[0][1][labels == 0].any()


@every_loss
@given(seed=SEEDS)
def test_a_query_without_positives_is_left_out_of_the_ranking(name: str, seed: int) -> None:
    """Losses by query do not see it; those by pair see its negatives; none makes a NaN of it."""
    similarity, labels = batch(seed)
    labels[-1].clamp_(max=0)
    loss = RANKING_LOSSES[name]
    if name not in ("mae", "mse", "contrastive"):
        assert_close(loss(similarity, labels), loss(similarity[:-1], labels[:-1]))
    similarity.requires_grad_()
    nothing = loss(similarity, labels.clamp(max=0))
    nothing.backward()
    assert torch.isfinite(nothing)
    assert torch.isfinite(similarity.grad).all()


@pytest.mark.parametrize("name", AVERAGE_PRECISION)
@given(seed=SEEDS)
def test_average_precision_losses_lie_in_the_unit_interval(name: str, seed: int) -> None:
    """0 is a perfect ranking, 1 a hopeless one."""
    similarity, labels = batch(seed)
    assert -1e-9 <= RANKING_LOSSES[name](similarity, labels).item() <= 1 + 1e-9


@every_loss
def test_a_perfect_ranking_costs_nothing(name: str) -> None:
    """Positives at 1 and negatives at 0; the circle loss, a softplus, only comes close to zero."""
    _, labels = batch(0)
    loss = RANKING_LOSSES[name]((labels > 0).double(), labels).item()
    assert loss == pytest.approx(0, abs=1e-3 if name == "circle" else 1e-9)


@pytest.mark.parametrize("name", AVERAGE_PRECISION)
def test_a_reversed_ranking_costs_more_than_a_random_one(name: str) -> None:
    """Which costs more than a perfect one."""
    similarity, labels = batch(1)
    loss = RANKING_LOSSES[name]
    perfect = loss((labels > 0).double(), labels)
    reversed_ = loss((labels < 0).double(), labels)
    assert perfect < loss(similarity, labels) < reversed_


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    """The value is that of the same numbers in float32, and the gradient is finite."""
    similarity, labels = batch(2, num_rows=30, size=40)
    half = similarity.to(dtype).requires_grad_()
    loss = RANKING_LOSSES[name](half, labels)
    loss.backward()
    assert_close(loss, RANKING_LOSSES[name](half.detach().float(), labels))
    assert torch.isfinite(half.grad).all()


@every_loss
def test_leading_dimensions_are_more_rows(name: str) -> None:
    """[P, T, T'] of frames is P * T rows."""
    similarity, labels = batch(3, num_rows=6)
    loss = RANKING_LOSSES[name]
    assert_close(loss(similarity.view(2, 3, 7), labels.view(2, 3, 7)), loss(similarity, labels))
