"""Average precision against hand arithmetic, slow loops and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hapvr.benchmark.metrics import (
    average_precision,
    bootstrap_micro_ap,
    interpolated_precision,
    ranks_at,
)
from hapvr.seeding import numpy_rng


@st.composite
def rankings(draw, *, max_size=30):
    """Similarities with many ties, and which of them are relevant (at least one)."""
    size = draw(st.integers(1, max_size))
    similarity = draw(st.lists(st.integers(-4, 4), min_size=size, max_size=size))
    relevant = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    relevant[draw(st.integers(0, size - 1))] = True
    return np.array(similarity, dtype=np.float32) / 4, np.array(relevant)


def relevant_ranks(similarity, relevant, *, ties="worst"):
    """Ranks of the relevant items of a ranking in any order, ascending."""
    order = np.argsort(-similarity, kind="stable")
    row_order, worst = ranks_at(
        np.flatnonzero(relevant[order]), similarity[order], np.array([], int)
    )
    return worst if ties == "worst" else row_order


def score(similarity, relevant, *, kind="step", ties="worst", num_relevant=None):
    ranks = relevant_ranks(similarity, relevant, ties=ties)
    return average_precision(ranks, num_relevant=num_relevant or int(relevant.sum()), kind=kind)


def slow_step(similarity, relevant):
    """(1/P) sum_i i / r_i, item by item, tied items in the order of their rows."""
    order = sorted(range(len(similarity)), key=lambda i: -similarity[i])
    hits = 0
    total = 0.0
    for rank, item in enumerate(order, start=1):
        if relevant[item]:
            hits += 1
            total += hits / rank

    return total / hits


def slow_trapezoid(similarity, relevant):
    """EVVE's sum of (p0 + p1) / 2, item by item."""
    order = sorted(range(len(similarity)), key=lambda i: -similarity[i])
    num_hits = 0
    total = 0.0
    for rank, item in enumerate(order):
        if relevant[item]:
            before = 1.0 if rank == 0 else num_hits / rank
            total += (before + (num_hits + 1) / (rank + 1)) / 2
            num_hits += 1

    return total / num_hits


def test_average_precision_of_the_example():
    """The protocol's example [0, 1, 0, 0, 1] gives 0.45 by steps and 0.2875 by trapezoids."""
    similarity = np.array([5.0, 4, 3, 2, 1])
    relevant = np.array([0, 1, 0, 0, 1], dtype=bool)
    assert score(similarity, relevant) == pytest.approx(0.45)
    assert score(similarity, relevant, kind="trapezoid") == pytest.approx(0.2875)


def test_relevant_ranks_of_ties():
    """Two relevant of four tied items: rows decide the legacy ranks, the last rank is the worst."""
    similarity = np.zeros(4)
    relevant = np.array([True, False, True, False])
    assert relevant_ranks(similarity, relevant, ties="row_order").tolist() == [1, 3]
    assert relevant_ranks(similarity, relevant).tolist() == [4, 4]


@given(rankings())
def test_average_precision_equals_the_loops(ranking):
    """The vectorised values equal the formulas written item by item."""
    assert score(*ranking, ties="row_order") == pytest.approx(slow_step(*ranking))
    assert score(*ranking, ties="row_order", kind="trapezoid") == pytest.approx(
        slow_trapezoid(*ranking)
    )


@given(rankings())
def test_tie_grouped_average_precision_equals_scikit_learn(ranking):
    """Grouping tied scores gives scikit-learn's value."""
    from sklearn.metrics import average_precision_score  # every test process imports this module

    similarity, relevant = ranking
    wanted = average_precision_score(relevant, similarity)
    assert score(similarity, relevant, kind="tie_grouped") == pytest.approx(wanted)


def test_interpolated_precision_groups_ties():
    """Items 3, 2, 2, 1 with hits at 3, 2 and 1: precision 1, 2/3, 3/4 at recall 1/4, 2/4, 3/4 of
    four relevant."""
    ranks = relevant_ranks(np.array([3.0, 2, 2, 1]), np.array([True, False, True, True]))
    precisions = interpolated_precision(
        ranks, num_relevant=4, recalls=np.array([0, 0.25, 0.5, 0.75, 1])
    )
    np.testing.assert_allclose(precisions, [1, 1, 0.75, 0.75, 0])


def test_bootstrap_micro_ap_equals_repeated_queries():
    """Weights 2, 0, 1 give the micro-AP of a pool with the first query twice and without the
    second."""
    rng = numpy_rng("bootstrap test")
    ranked = []
    for _ in range(3):
        similarity = np.sort(rng.integers(0, 9, 20) / 8)[::-1]
        ranked.append((similarity, rng.random(20) < 0.3))

    num_relevant = np.array([hits.sum() + 1 for _, hits in ranked])
    value = bootstrap_micro_ap(
        ranked, num_relevant=num_relevant, weights=np.array([[2.0, 0, 1]]), block=3
    )
    chosen = [ranked[0], ranked[0], ranked[2]]
    similarity = np.concatenate([pair[0] for pair in chosen])
    relevant = np.concatenate([pair[1] for pair in chosen])
    total = int(2 * num_relevant[0] + num_relevant[2])
    assert value[0] == pytest.approx(
        score(similarity, relevant, kind="tie_grouped", num_relevant=total)
    )
