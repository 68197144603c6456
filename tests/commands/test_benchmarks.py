"""`hapvr benchmarks`."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from hapvr.benchmark.definitions.catalog import load_definition
from tests.commands.conftest import Call
from tests.conftest import BAD_FILES, write_clip


def test_list_names_what_ships_and_what_needs_files(call: Call) -> None:
    """Both forms name every benchmark; the ones without ids here say which files they need."""
    found = call("benchmarks", "list", "--json").json["benchmarks"]
    assert {"fivr-5k", "fivr-200k", "evve", "svd", "cc_web_video", "vcdb"} <= set(found)
    assert "needs annotation/*.txt" in found["vcdb"]
    text = call("benchmarks", "list").out
    assert all(name in text for name in found)


def test_make_gives_a_benchmark_and_counts_unusable_files(call: Call, clips_folder: Path, tmp_path: Path) -> None:
    """Every good clip is a query, every bad file is named with its reason, and the folder is a benchmark."""
    clips = tmp_path / "clips"
    clips.mkdir()
    for name in ("clip 00.mp4", "clip 01.mp4", *BAD_FILES):
        (clips / name).write_bytes((clips_folder / name).read_bytes())
    out = tmp_path / "made"
    done = call("benchmarks", "make", "--videos", clips, "--out", out, "--name", "mine", "--copies", 1, "--json")
    assert done.code == 0, done.error
    assert done.json["queries"] == 2
    assert {Path(path).name for path in done.json["unusable"]} == set(BAD_FILES)
    assert all(done.json["unusable"].values())
    definition = load_definition(done.json["folder"])
    assert (len(definition.queries), len(definition.database)) == (2, done.json["database"])


def test_make_without_videos_fails_and_names_the_folder(call: Call, tmp_path: Path) -> None:
    """Exit 1 with the folder; nothing is left behind."""
    (tmp_path / "nothing").mkdir()
    done = call("benchmarks", "make", "--videos", tmp_path / "nothing", "--out", tmp_path / "out")
    assert done.code == 1
    assert str(tmp_path / "nothing") in done.error
    assert not (tmp_path / "out" / "benchmark.json").exists()


@pytest.mark.parametrize("arguments", [("--copies", 0), ("--copies", "two"), ("--unknown",)])
def test_make_refuses_wrong_options(call: Call, tmp_path: Path, arguments: tuple[object, ...]) -> None:
    """A wrong call is exit 2 and names the option."""
    write_clip(tmp_path / "a.mp4", seed=1, seconds=1)
    done = call("benchmarks", "make", "--videos", tmp_path, "--out", tmp_path / "out", *arguments)
    assert done.code == 2
    assert str(arguments[0]) in done.error


def test_show_writes_the_queries_as_csv(call: Call, tmp_path: Path) -> None:
    """A row per query with its number of relevant videos by task; the counts are those of the evaluation."""
    out = tmp_path / "lists" / "queries.csv"
    done = call("benchmarks", "show", "fivr-5k", "--queries", out, "--json")
    assert done.code == 0, done.error
    assert (done.json["queries"], done.json["database"]) == (50, 5000)
    assert done.json["tasks"]["DSVR"] == "mAP"
    table = pl.read_csv(out)
    definition = load_definition("fivr-5k")
    assert table["query_id"].to_list() == list(definition.queries)
    wanted = definition.labels.filter(
        pl.col("label").is_in(["ND", "DS"]) & (pl.col("query_id") != pl.col("reference_id"))
    )
    assert table["DSVR"].sum() == wanted.unique(["query_id", "reference_id"]).height
    assert call("benchmarks", "show", "fivr-200k").out.startswith("name: fivr-200k\nqueries: 100\n")
