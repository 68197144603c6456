"""Bad similarity files: each is refused with what was found and what was wanted, or counted."""

import polars as pl
import pytest

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.ranking import read_pairs, relevant_and_irrelevant
from hapvr.benchmark.report import similarity_distribution_figure
from hapvr.benchmark.tasks import Task
from hapvr.errors import DataError

DEFINITION = BenchmarkDefinition(
    name="small",
    queries=("a", "b"),
    database=("x", "y"),
    labels=pl.DataFrame({"query_id": ["a"], "reference_id": ["x"], "label": ["yes"]}),
    tasks=(Task(name="mAP", metric="mAP", positives=frozenset({"yes"})),),
)


def table(query=("a", "b"), reference=("x", "y"), similarity=(0.1, 0.2)):
    return pl.DataFrame(
        {"query_id": list(query), "reference_id": list(reference), "similarity": list(similarity)}
    )


@pytest.mark.parametrize(
    "of",
    [lambda path: path, str, lambda path: pl.read_parquet(path, glob=False)],
    ids=["path", "text", "table"],
)
def test_read_pairs_of_a_file_equals_the_table(tmp_path, of):
    """A Parquet file of several row groups with dictionary-encoded ids gives the pairs of the table
    it was written from."""
    scores = table(similarity=(0.25, 0.5)).with_columns(
        pl.col("query_id", "reference_id").cast(pl.Categorical)
    )
    scores.write_parquet(tmp_path / "s [1].parquet", row_group_size=1)
    pairs = read_pairs(DEFINITION, of(tmp_path / "s [1].parquet"))
    assert pairs["query"].to_list() == pairs["reference"].to_list() == [0, 1]
    assert pairs["similarity"].to_list() == [0.25, 0.5]


@pytest.mark.parametrize("unknown", ["z", None])
def test_rows_of_videos_that_the_benchmark_lacks_are_left_out(unknown):
    pairs = read_pairs(DEFINITION, table(query=("b", unknown), reference=("x", "x")))
    assert pairs["query"].to_list() == [1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), None])
def test_scores_that_are_not_finite_are_marked_and_not_dropped(bad):
    pairs = read_pairs(DEFINITION, table(similarity=(bad, 0.2)))
    assert pairs["invalid"].to_list() == [True, False]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (table(similarity=("0.1", "0.2")), "'similarity' is .*string.*, expected floats"),
        (table(query=(1, 2)), "'query_id' is int64, expected video ids as strings"),
        (table().drop("similarity"), "no column 'similarity'"),
        (table().clear(), "none of 0 rows"),
        (table(query=("z", "z"), reference=("x", "y")), "none of 2 rows"),
        (
            table(query=("a", "a"), reference=("x", "x")),
            "1 pairs are repeated, e.g. query 'a' with reference 'x'",
        ),
    ],
)
@pytest.mark.parametrize("as_file", [False, True], ids=["table", "file"])
def test_read_pairs_refuses(scores, message, as_file, tmp_path):
    """A table or file that cannot be evaluated is an error that names what is wrong."""
    scores.write_parquet(tmp_path / "s.parquet")
    with pytest.raises(DataError, match=message):
        read_pairs(DEFINITION, tmp_path / "s.parquet" if as_file else scores)


def test_relevant_and_irrelevant_similarities_by_hand():
    """Both kinds of the pairs that the task ranks, for the distributions of HAP-VR Fig. 5; the
    query itself and scores that are not finite are neither."""
    labels = pl.DataFrame({"query_id": ["q"], "reference_id": ["a"], "label": ["yes"]})
    definition = BenchmarkDefinition(
        name="small",
        queries=("q",),
        database=("a", "b", "c", "q"),
        labels=labels,
        tasks=(Task(name="mAP", metric="mAP", positives=frozenset({"yes"})),),
    )
    scores = pl.DataFrame(
        {
            "query_id": ["q"] * 4,
            "reference_id": ["a", "b", "c", "q"],
            "similarity": [0.75, 0.25, float("nan"), 1.0],
        }
    )
    relevant, irrelevant = relevant_and_irrelevant(definition, scores, task="mAP")
    assert relevant.tolist() == [0.75]
    assert irrelevant.tolist() == [0.25]
    figure = similarity_distribution_figure(relevant, irrelevant, title="mAP")
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend == ["irrelevant (1 pairs)", "relevant (1 pairs)"]
