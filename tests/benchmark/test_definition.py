"""`clips` benchmarks: written, read back, and refused where ids, files and labels do not agree; and
the shipped ones."""

import json
import shutil

import polars as pl
import pytest

from hapvr.benchmark.definition import is_complete, load_definition, write_clips
from hapvr.benchmark.protocol import evaluate
from hapvr.errors import DataError
from hapvr.files import PART_SUFFIX
from hapvr.tables import read_frame, write_table


def write(folder, *, labels=None, segments=()):
    rows = [
        (file, role, "incident", "original")
        for file, role in (("a b.mp4", "query"), ("sub/c.mp4", "database"))
    ]
    pairs = labels or [("a b.mp4", "sub/c.mp4", "ND")]
    return write_clips(
        folder, name="mine", videos=rows, labels=pairs, segments=segments, provenance={"seed": 3}
    )


def test_write_clips_round_trip(tmp_path):
    """What was written is read back, with the tasks that the labels allow and the files of the
    ids."""
    times = (0.0, 4.5, 2.0, 6.5)
    write(tmp_path, segments=[("a b.mp4", "sub/c.mp4", *times)])
    definition = load_definition(tmp_path)
    assert definition.segments.rows() == [("mine/a b.mp4", "mine/sub/c.mp4", *times)]
    assert definition.queries == ("mine/a b.mp4",)
    assert definition.database == ("mine/sub/c.mp4",)
    assert [task.name for task in definition.tasks] == ["DSVR", "DSVD"]
    assert (
        dict(definition.videos.select("video_id", "path").iter_rows())["mine/sub/c.mp4"]
        == "videos/sub/c.mp4"
    )
    assert definition.provenance == {"seed": 3}
    assert not list(tmp_path.glob(f"*{PART_SUFFIX}"))


def test_parts_and_whole_copies_do_not_count_against_each_other(tmp_path):
    """Either leaves the ranking of the other's task, so both tasks are perfect though both copies
    come before the third video."""
    rows = [
        (file, "query" if file == "a.mp4" else "database", "", "")
        for file in ("a.mp4", "b.mp4", "c.mp4", "d.mp4")
    ]
    labels = [("a.mp4", "b.mp4", "DS"), ("a.mp4", "c.mp4", "part")]
    definition = write_clips(
        tmp_path, name="mine", videos=rows, labels=labels, segments=[], provenance={}
    )
    scores = pl.DataFrame(
        {
            "query_id": definition.queries * 3,
            "reference_id": definition.database,
            "similarity": [0.8, 0.9, 0.1],
        }
    )
    assert evaluate(definition, scores).metrics == {"DSVR": 1, "DSVD": 1, "parts": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": [("a b.mp4", "z.mp4", "ND")]}, "labels.reference_id are not in its database"),
        ({"labels": [("a b.mp4", "sub/c.mp4", "ND")] * 2}, "labels are given twice"),
        (
            {"segments": [("a b.mp4", "sub/c.mp4", 1, 1, 0, 1)]},
            "1 segments are not stretches of time",
        ),
        ({"labels": [("a b.mp4", "sub/c.mp4", "XX")]}, "no label gives any task a positive pair"),
    ],
)
def test_write_clips_refuses(tmp_path, options, message):
    """Files, ids, roles and labels that do not agree are refused, and no benchmark.json is left."""
    with pytest.raises(DataError, match=message):
        write(tmp_path, **options)
    assert not (tmp_path / "benchmark.json").exists()


def with_values(value):
    """Lets the first column of a table have this value alone."""

    def change(table):
        values = pl.Series(table.columns[0], [value] * len(table), strict=False)
        return table.with_columns(values)

    return change


DAMAGE = {
    "no values": with_values(None),
    "another type": with_values(5),
    "another place": with_values("../x"),
    "no column": lambda table: table.drop(table.columns[0]),
    "texts that are missing": lambda table: table.with_columns(
        pl.lit(None, pl.String).alias(table.columns[0])
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("table", ["videos", "labels", "segments"])
def test_a_damaged_table_is_named(tmp_path, table, damage):
    write(tmp_path, segments=[("a b.mp4", "sub/c.mp4", 0.0, 4.5, 2.0, 6.5)])
    path = tmp_path / f"{table}.parquet"
    write_table(DAMAGE[damage](read_frame(path)).to_arrow(), path)
    with pytest.raises(DataError, match=rf"benchmark mine|{table}"):
        load_definition(tmp_path)


@pytest.mark.parametrize("table", ["videos", "labels", "segments"])
def test_a_benchmark_with_a_file_that_is_no_table_counts_as_missing(tmp_path, table):
    write(tmp_path, segments=[("a b.mp4", "sub/c.mp4", 0.0, 4.5, 2.0, 6.5)])
    (tmp_path / f"{table}.parquet").write_text("no table")
    with pytest.warns(UserWarning, match=rf"{table}\.parquet.* It is rebuilt"):
        assert not is_complete(tmp_path)


@pytest.mark.parametrize(
    ("name", "queries", "database", "labels", "tasks"),
    [
        ("fivr-5k", 50, 5000, 2639, 12),
        ("fivr-200k", 100, 225_960, 16_265, 12),
        ("evve", 620, 2373, 135_213, 2),
        ("svd", 206, 5951, 6355, 2),
        # 13,115 files and 10 labelled numbers without one
        ("cc_web_video", 24, 13_125, 12_876, 4),
    ],
)
def test_shipped_definitions_have_the_published_sizes(name, queries, database, labels, tasks):
    """Queries, database, labels and tasks of every shipped benchmark."""
    definition = load_definition(name)
    assert len(definition.queries) == queries
    assert len(definition.database) == database
    assert definition.labels.height == labels
    assert len(definition.tasks) == tasks


def test_a_damaged_definition_is_refused(tmp_path):
    """Of another version, or with a table that cannot be read, by the file's name."""
    folder = shutil.copytree(load_definition("fivr-5k").folder, tmp_path / "fivr-5k")
    head = json.loads((folder / "benchmark.json").read_text())
    (folder / "benchmark.json").write_text(json.dumps(head | {"format_version": 99}))
    with pytest.raises(DataError, match="format_version: Input should be less"):
        load_definition(folder)
    (folder / "benchmark.json").write_text(json.dumps(head))
    videos = read_frame(path := folder / "videos.parquet")
    write_table(
        videos.with_columns(pl.col("role").replace("database", "distractor")).to_arrow(), path
    )
    with pytest.raises(DataError, match="role 'distractor'; expected roles query"):
        load_definition(folder)
    (folder / "labels.parquet").write_text("not a table")
    with pytest.raises(DataError, match=r"labels\.parquet"):
        load_definition(folder)
