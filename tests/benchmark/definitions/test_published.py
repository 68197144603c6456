"""Readers of published files and the shipped tables: counts known from the papers, and small made-up files."""

from __future__ import annotations

import json

import pytest

from hapvr.benchmark.definitions.catalog import load_definition, write_definition
from hapvr.errors import DataError


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
    assert (len(definition.queries), len(definition.database)) == (queries, database)
    assert (definition.labels.height, len(definition.tasks)) == (labels, tasks)


def test_load_definition_refuses_unknown_names_and_files(tmp_path):
    """An unknown name lists the known ones; files of authors are read for SVD alone."""
    with pytest.raises(DataError, match=r"neither a known name .*fivr-5k.* nor a folder"):
        load_definition("fivr-6k")
    with pytest.raises(DataError, match="files of authors are read for svd alone"):
        load_definition("evve", published_files=tmp_path)


def write_svd(folder, labels="q.mp4 a.mp4 1\nq.mp4 b.mp4 0\n"):
    folder.mkdir(exist_ok=True)
    (folder / "test_groundtruth").write_text(labels)
    (folder / "unlabeled-data-id").write_text("u.mp4\nv.mp4\n")
    return folder


def test_read_svd_annotation(tmp_path):
    """Unlabelled videos join the database."""
    svd = load_definition("svd", published_files=write_svd(tmp_path))
    assert svd.database == ("a.mp4", "b.mp4", "u.mp4", "v.mp4")
    assert svd.labels["label"].to_list() == ["positive", "negative"]
    assert svd.tasks == load_definition("svd").tasks


@pytest.mark.parametrize("line", ["q a", "q a 5"])
def test_damaged_files_are_refused(tmp_path, line):
    """With file, line and what was wanted."""
    with pytest.raises(DataError, match=rf"test_groundtruth: line '{line}', wanted 'query candidate"):
        load_definition("svd", published_files=write_svd(tmp_path, f"{line}\n"))


def test_write_definition_round_trip(tmp_path):
    """A written definition is read back from its folder with the same tasks and tables."""
    definition = load_definition("svd", published_files=write_svd(tmp_path / "files"))
    folder = write_definition(definition, tmp_path / "svd")
    again = load_definition(folder)
    assert (again.name, again.queries, again.database) == (definition.name, definition.queries, definition.database)
    assert again.tasks == definition.tasks
    assert again.labels.equals(definition.labels.sort(definition.labels.columns))
    head = json.loads((folder / "benchmark.json").read_text())
    (folder / "benchmark.json").write_text(json.dumps(head | {"format_version": 99}))
    with pytest.raises(DataError, match="format_version: Input should be less"):
        load_definition(folder)
    (folder / "benchmark.json").write_text(json.dumps(head))
    (folder / "labels.parquet").write_text("not a table")
    with pytest.raises(DataError, match=r"labels\.parquet"):
        load_definition(folder)
