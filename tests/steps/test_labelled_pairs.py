"""The file of labelled pairs against a project: names, times, lost videos, and videos that evaluation uses."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hapvr.benchmark.definition import COPY, LABEL_SCHEMA, BenchmarkDefinition, tasks_of
from hapvr.benchmark.definitions.stored import write_definition
from hapvr.data.filesystem import DataRoot
from hapvr.errors import DataError
from hapvr.model.tca.settings import TcaSettings
from hapvr.steps.labelled_pairs import find_labelled_pairs
from hapvr.steps.project import Project
from hapvr.steps.training import pending_data, prepare_training, training_shards
from hapvr.train.labelled_pairs import LabelledPair, LabelledPairs
from tests.train.runs import training_ids, with_pairs

UNREADABLE = "text.mp4"
HEADER = "query_id,reference_id,query_start_s,query_end_s,reference_start_s,reference_end_s\n"

Opened = Callable[..., tuple[Project, list[str]]]


@pytest.fixture
def opened(pooled_project: Project, tmp_path: Path) -> Opened:
    """Gives the project with a file of these rows, in which A to F stand for its training videos, and its training shards."""
    names = dict(zip("ABCDEF", training_ids(pooled_project), strict=False))

    def with_rows(rows: str, *, header: str = HEADER, **changes: Any) -> tuple[Project, list[str]]:
        file = tmp_path / "pairs.csv"
        file.write_text(header + "".join(short(names.get(part, part)) for part in re.split("([A-F])", rows)))
        config = with_pairs(pooled_project, file=str(file), **changes)
        project = replace(pooled_project, config=config)
        return project, training_shards(project)

    return with_rows


def test_names_of_videos(opened: Opened, pooled_project: Project) -> None:
    """An id, a name without its source, without suffix; a row with a video that could not be read is left out and counted."""
    a, b, c, *others = training_ids(pooled_project)
    rows = f"own-train/A.mp4,B,0,2,1,6\nC.mp4,B,,,,\nC,{UNREADABLE},,,,\n"
    project, shards = opened(rows, distractors=("own-train",))
    found = find_labelled_pairs(project, shards)
    pairs = (LabelledPair((a, b), ((0.0, 2.0), (1.0, 6.0))), LabelledPair((c, b)))
    assert found == LabelledPairs(pairs, tuple(others), 1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "A,clip 99,,,,\n",
            r"pairs\.csv, row 1: 'clip 99' is not a training video with features; wanted an id such as",
        ),
        ("A,B,,,,\nA,own-train/A.mp4,,,,\n", r"row 2: both names are of own-train/clip \d\d\.mp4"),
        ("A,B,0,2,6.5,7\n", r"row 1: the copied part from 6\.5 s to 7 s is not inside own-train/clip \d\d\.mp4"),
        ("A,B,0,60,0,6\n", r"row 1: .*to 60 s is not inside own-train/clip \d\d\.mp4, of which 6 s have features"),
        (f"A,{UNREADABLE},,,,\n", r"pairs\.csv: all 1 rows name videos without features"),
    ],
)
def test_rows_that_do_not_fit_the_videos(opened: Opened, rows: str, message: str) -> None:
    project, shards = opened(rows)
    with pytest.raises(DataError, match=message):
        find_labelled_pairs(project, shards)


def test_videos_of_an_evaluation_are_refused_by_id(opened: Opened, pooled_project: Project, tmp_path: Path) -> None:
    """As a pair, and as a distractor."""
    a, _, c, *_ = training_ids(pooled_project)
    labels = pl.DataFrame([(a, c, COPY)], schema=LABEL_SCHEMA, orient="row")
    definition = BenchmarkDefinition(
        name="mine", kind="vcdb", queries=(a,), database=(c,), labels=labels, tasks=tasks_of("vcdb", [COPY])
    )
    project, shards = opened("A,B,,,,\n", distractors=("own-train",))
    copied = copy_of(project, tmp_path)
    write_definition(definition, copied.root.local_path("corpus/mine"), source="test", licence="none")
    evaluation = project.config.evaluation.model_copy(update={"benchmarks": ("mine",)})
    copied = replace(copied, config=copied.config.model_copy(update={"evaluation": evaluation}))
    with pytest.raises(DataError, match=f"2 videos .* {a}, {c}; drop their rows"):
        find_labelled_pairs(copied, shards)


def test_videos_of_an_evaluation_are_refused_by_content(opened: Opened, tmp_path: Path) -> None:
    """A file that is the same as one of the test benchmark, under another name."""
    project, shards = opened("A,B,,,,\n")
    copied = copy_of(project, tmp_path)
    assert copied.root.local is not None
    test = next(iter(sorted((copied.root.local / "videos").glob("own-test-*"))))
    content = pl.read_parquet(test / "index.parquet")["sha256"][0]
    shown = {"sha256": lambda _: content}
    for key in shards:
        rewrite(copied, f"videos/{key}/index.parquet", shown)
    with pytest.raises(DataError, match=r"videos of labelled pairs .* also in benchmark own-test: own-train/clip"):
        find_labelled_pairs(copied, shards)


def test_another_file_asks_for_another_training(opened: Opened, tmp_path: Path) -> None:
    """What the schedule looks at: other pairs in the same file; a file that is gone is an error, not a training."""
    project, _ = opened("A,B,0,2,1,6\nC,B,,,,\n", network=TcaSettings(heads=4))
    copied = copy_of(project, tmp_path)
    run = prepare_training(copied, "seen", tags={})
    copied.root.write_json("models/current.json", {"key": run.key})
    assert pending_data(copied).is_empty
    opened("A,B,0,2,1,6\nC,A,,,,\n")
    assert pending_data(copied).settings_changed
    opened("A,B,0,2,1,6\nC,B,,,,\n")
    assert pending_data(copied).is_empty
    (tmp_path / "pairs.csv").unlink()
    with pytest.raises(DataError, match=r"pairs\.csv: no such file; set train\.labelled_pairs\.file"):
        pending_data(copied)


def short(video_id: str) -> str:
    """Without its source and suffix."""
    return video_id.removeprefix("own-train/").removesuffix(".mp4")


def copy_of(project: Project, folder: Path) -> Project:
    """The project with its data in a folder of its own."""
    assert project.root.local is not None
    shutil.copytree(project.root.local, folder / "data", ignore=shutil.ignore_patterns("mlflow", "models", "search"))
    config = project.config.model_copy(update={"data_root": str(folder / "data")})
    return Project(config, DataRoot(str(folder / "data")), folder)


def rewrite(project: Project, name: str, changes: dict[str, Callable[[str], str]]) -> None:
    """Change columns of a stored table in place."""
    path = project.root.local_path(name)
    table = pq.read_table(path)
    for column, change in changes.items():
        at = table.schema.get_field_index(column)
        values = pa.array(
            [change(value) for value in table.column(column).to_pylist()], type=table.schema.field(at).type
        )
        table = table.set_column(at, table.schema.field(at), values)
    pq.write_table(table, path)
