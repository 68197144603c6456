"""Readers of published files and the shipped tables: counts known from the papers, and small made-up files."""

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


def test_load_definition_refuses_unknown_names_and_missing_files(tmp_path):
    """An unknown name lists the known ones; VCDB without its files says what to give; shipped ones need none."""
    with pytest.raises(DataError, match=r"neither a known name .*fivr-5k.* nor a folder"):
        load_definition("fivr-6k")
    with pytest.raises(DataError, match=r"VCDB core.*annotation/\*\.txt.*; its ids are not shipped"):
        load_definition("vcdb")
    with pytest.raises(DataError, match="files of authors are read for svd, vcdb"):
        load_definition("evve", published_files=tmp_path)


def write_vcdb(folder):
    (folder / "annotation").mkdir(parents=True)
    lines = ["a.flv,b.mp4,00:00:01,00:00:09,00:01:00,00:01:08", "a.flv,a.flv,00:00:01,00:00:09,00:00:01,00:00:09"]
    (folder / "annotation" / "event.txt").write_text("\n".join(lines) + "\n")
    for name in ("a.flv", "b.mp4", "c.flv"):
        path = folder / "core_dataset" / "event" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "distractors.txt").write_text("d\ne\n")


def test_read_vcdb(tmp_path):
    """A pair in the annotation is relevant both ways, a video is no copy of itself, distractors only add negatives."""
    write_vcdb(tmp_path)
    core = load_definition("vcdb", published_files=tmp_path)
    assert core.queries == core.database == ("a", "b", "c")
    assert sorted(core.labels.iter_rows()) == [("a", "b", "copy"), ("b", "a", "copy")]
    assert load_definition("vcdb-distractors", published_files=tmp_path).database == ("a", "b", "c", "d", "e")
    (tmp_path / "distractors.txt").unlink()
    with pytest.raises(DataError, match=r"neither distractors\.txt nor files"):
        load_definition("vcdb-distractors", published_files=tmp_path)


def test_read_svd_annotation(tmp_path):
    """Unlabelled videos join the database."""
    (tmp_path / "test_groundtruth").write_text("q.mp4 a.mp4 1\nq.mp4 b.mp4 0\n")
    (tmp_path / "unlabeled-data-id").write_text("u.mp4\nv.mp4\n")
    svd = load_definition("svd", published_files=tmp_path)
    assert svd.database == ("a.mp4", "b.mp4", "u.mp4", "v.mp4")
    assert svd.labels["label"].to_list() == ["positive", "negative"]


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("svd", "test_groundtruth", "q a\n", "has 2 fields, wanted 3"),
        ("svd", "test_groundtruth", "q a 5\n", "label '5', wanted 0 or 1"),
        ("vcdb", "annotation/e.txt", "a,b\n", "has 2 fields, wanted 6"),
    ],
)
def test_readers_refuse_damaged_files(tmp_path, name, file, content, message):
    """A damaged file is an error that names file, line and what was wanted."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(content)
    with pytest.raises(DataError, match=message):
        load_definition(name, published_files=tmp_path)


def test_write_definition_round_trip(tmp_path):
    """A written definition is read back from its folder with the same tasks and tables."""
    write_vcdb(tmp_path / "files")
    definition = load_definition("vcdb", published_files=tmp_path / "files")
    folder = write_definition(definition, tmp_path / "vcdb")
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
