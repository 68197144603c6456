"""Evaluation against hand arithmetic, published-protocol numbers, and the laws of the policies."""

import json

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from hapvr.benchmark.definition import BenchmarkDefinition, load_definition
from hapvr.benchmark.protocol import evaluate
from hapvr.benchmark.ranking import ranked_pairs
from hapvr.benchmark.tasks import Task
from hapvr.errors import DataError
from tests.conftest import GOLDEN, golden_similarities


def make_definition(relevant, *, num_queries=2, num_references=5, **task_options):
    """Queries q0.., references r0..; relevant: (query number, reference number) pairs."""
    task = {"positives": frozenset({"yes"}), **task_options}
    return BenchmarkDefinition(
        name="small",
        queries=tuple(f"q{i}" for i in range(num_queries)),
        database=tuple(f"r{i}" for i in range(num_references)),
        labels=pl.DataFrame(
            [(f"q{q}", f"r{r}", "yes") for q, r in relevant],
            schema={"query_id": pl.String, "reference_id": pl.String, "label": pl.String},
            orient="row",
        ),
        tasks=(Task(name="mAP", metric="mAP", **task), Task(name="uAP", metric="micro-AP", **task)),
    )


def table(rows):
    return pl.DataFrame(
        [(f"q{q}", f"r{r}", float(s)) for q, r, s in rows],
        schema={"query_id": pl.String, "reference_id": pl.String, "similarity": pl.Float32},
        orient="row",
    )


def full_table(scores):
    """scores: [Q][N]."""
    return table([(q, r, s) for q, row in enumerate(scores) for r, s in enumerate(row)])


@pytest.mark.parametrize(
    ("benchmark", "file", "expected"),
    [
        ("fivr-5k", "fivr5k_similarities_dev", "fivr5k_dev"),
        ("fivr-5k", "fivr5k_similarities_dev_missing", "fivr5k_dev_missing"),
        ("evve", "evve_similarities_dev_missing", "evve_dev_missing"),
        ("svd", "svd_labeled_similarities_dev", "svd_labeled_dev"),
    ],
)
def test_evaluate_equals_the_research_release(benchmark, file, expected):
    """The official policy gives what the release of S2VS and HAP-VR reports on the same
    similarities."""
    wanted = json.loads((GOLDEN / "expected_metrics.json").read_text())[expected]
    result = evaluate(load_definition(benchmark), golden_similarities(file), policy="official")
    assert result.metrics == pytest.approx(wanted, abs=1e-6)


def test_evaluate_counts_what_is_missing():
    """With a tenth of the database lost, the counts say so and the strict score is lower than the
    official one."""
    definition = load_definition("fivr-5k")
    scores = golden_similarities("fivr5k_similarities_dev_missing")
    strict = evaluate(definition, scores, policy="strict")
    official = evaluate(definition, scores, policy="official")
    assert strict.availability == official.availability
    assert strict.availability["num_references"] == 5000
    assert strict.availability["num_references_scored"] == 4498
    assert strict.tasks[0].num_relevant > official.tasks[0].num_relevant
    assert all(strict.metrics[name] < value for name, value in official.metrics.items())


def test_evaluate_by_hand():
    """Hits at ranks 1 and 3 for one query and 2 for the other: mAP (5/6 + 1/2) / 2; pooled ranks 1,
    4, 5."""
    definition = make_definition([(0, 0), (0, 2), (1, 1)], num_references=3)
    result = evaluate(definition, full_table([[0.9, 0.5, 0.3], [0.7, 0.4, 0.1]]))
    assert result.metrics["mAP"] == pytest.approx((5 / 6 + 1 / 2) / 2)
    assert result.metrics["uAP"] == pytest.approx((1 + 2 / 4 + 3 / 5) / 3)


def test_policies_by_hand():
    """Of two positives one is missing and found first is the other: strict 1/2, official 1, frozen
    on the rest 1."""
    definition = make_definition([(0, 0), (0, 4)], num_queries=2)
    scores = table([(0, r, 1 - r / 10) for r in range(4)])
    assert evaluate(definition, scores).metrics == {"mAP": 0.5, "uAP": 0.5}
    assert evaluate(definition, scores, policy="official").metrics == {"mAP": 1.0, "uAP": 1.0}
    manifest = frozenset({"q0", "r0", "r1"})
    frozen = evaluate(definition, scores, policy="frozen", available=manifest)
    assert frozen.metrics == {"mAP": 1.0, "uAP": 1.0}
    assert frozen.availability["num_references"] == 2


@pytest.mark.parametrize(
    ("relevant", "scored", "options", "official", "strict"),
    [
        ([(0, 0), (1, 0)], [(0, 5)], {}, 1.0, 0.5),
        ([(0, 0), (1, 4)], [(0, 4), (1, 4)], {}, 1.0, 0.5),
        ([(0, 0), (1, 4)], [(0, 4), (1, 4)], {"official_empty_query": "zero"}, 0.5, 0.5),
        (
            [(0, 0), (0, 4), (1, 0)],
            [(0, 4), (1, 4)],
            {"official_missing_positive": "misses"},
            0.75,
            0.75,
        ),
    ],
)
def test_what_is_missing_by_hand(relevant, scored, options, official, strict):
    """A query without scores, or without positives that have some, is skipped (FIVR) or scores zero
    (EVVE); a positive without a score leaves the ground truth, or stays there (CC_WEB_VIDEO). Under
    the strict policy all of it counts."""
    definition = make_definition(relevant, **options)
    scores = table([(q, r, 1 - r / 10) for q, count in scored for r in range(count)])
    result = evaluate(definition, scores, policy="official")
    assert result.metrics["mAP"] == official
    assert evaluate(definition, scores).metrics["mAP"] == strict


@pytest.mark.parametrize(
    ("stays", "wanted"), [(False, 1 / 2), (True, (1 + 2 / 3) / 2)], ids=["leaves", "stays"]
)
def test_query_leaves_its_own_ranking(stays, wanted):
    """A query that is in the database leaves ranking and ground truth, unless the benchmark says
    that it stays."""
    definition = BenchmarkDefinition(
        name="own",
        queries=("q",),
        database=("q", "a", "b"),
        labels=pl.DataFrame(
            {"query_id": ["q", "q"], "reference_id": ["q", "b"], "label": ["yes", "yes"]}
        ),
        tasks=(Task(name="mAP", metric="mAP", positives=frozenset({"yes"}), query_stays=stays),),
    )
    scores = pl.DataFrame(
        {"query_id": ["q"] * 3, "reference_id": ["q", "a", "b"], "similarity": [1.0, 0.5, 0.2]}
    )
    assert evaluate(definition, scores).metrics["mAP"] == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("pool", "ranked"),
    [("labelled", [2, 1]), ("labelled_and_unlabelled", [4, 3]), ("database", [5, 5])],
)
def test_labelled_pools(pool, ranked):
    """`labelled` ranks a query's own candidates; `labelled_and_unlabelled` also the unlabelled."""
    columns = {
        "query_id": ["q0", "q0", "q1"],
        "reference_id": ["r0", "r1", "r2"],
        "label": ["yes", "no", "yes"],
    }
    labels = pl.DataFrame(columns)
    definition = BenchmarkDefinition(
        name="pools",
        queries=("q0", "q1"),
        database=tuple(f"r{i}" for i in range(5)),
        labels=labels,
        tasks=(Task(name="mAP", metric="mAP", positives=frozenset({"yes"}), pool=pool),),
    )
    assert ranked_pairs(definition, definition.tasks[0]).sum(axis=1).tolist() == ranked


score_tables = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(-3, 3)),
    min_size=4,
    max_size=18,
    unique_by=lambda row: row[:2],
)
RELEVANT = [(0, 0), (0, 1), (1, 1), (1, 2), (1, 3), (2, 5)]


@settings(deadline=None, max_examples=60)
@given(score_tables, st.data(), st.sampled_from(["step", "trapezoid", "tie_grouped"]))
def test_dropping_a_positive_never_raises_a_strict_score(rows, data, kind):
    """Under the strict policy losing the row of a relevant pair raises no task."""
    definition = make_definition(RELEVANT, num_queries=3, num_references=6, average_precision=kind)
    droppable = [index for index, row in enumerate(rows) if row[:2] in RELEVANT]
    if not droppable:
        return
    dropped = data.draw(st.sampled_from(droppable))
    before = evaluate(definition, table(rows))
    after = evaluate(definition, table(rows[:dropped] + rows[dropped + 1 :]))
    for first, second in zip(before.tasks, after.tasks, strict=True):
        assert second.value <= first.value + 1e-12


@settings(deadline=None, max_examples=60)
@given(score_tables, st.randoms(use_true_random=False))
def test_row_order_never_moves_the_value_of_grouped_ties(rows, random):
    """Shuffled rows give the same values, to the last bit."""
    definition = make_definition(
        RELEVANT, num_queries=3, num_references=6, average_precision="tie_grouped"
    )
    shuffled = random.sample(rows, len(rows))
    values = [evaluate(definition, table(order)).metrics for order in (rows, shuffled)]
    assert values[0] == values[1]


@pytest.mark.parametrize(("reference", "wanted"), [("r0", 0.0), ("r1", 0.5)])
def test_a_score_that_is_not_finite_never_helps(reference, wanted):
    """NaN is refused by the official policy; under strict a relevant one is a miss, another is
    ranked first."""
    definition = make_definition([(0, 0)], num_queries=1)
    scores = full_table([[0.9, 0.1, 0.1, 0.1, 0.1]])
    broken = scores.with_columns(
        pl.when(pl.col("reference_id") == reference)
        .then(float("nan"))
        .otherwise("similarity")
        .alias("similarity")
    )
    result = evaluate(definition, broken)
    assert result.metrics == {"mAP": wanted, "uAP": wanted}
    assert result.availability["num_pairs_invalid"] == 1
    with pytest.raises(DataError, match="1 scores are NaN or infinite"):
        evaluate(definition, broken, policy="official")
