"""The shipped definitions: counts known from the papers, and damaged files."""

import json
import shutil

import pytest

from hapvr.benchmark.definitions.catalog import load_definition
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


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(DataError, match=r"neither a known name .*fivr-5k.* nor a folder"):
        load_definition("fivr-6k")


def test_a_damaged_definition_is_refused(tmp_path):
    """Of another version, or with a table that cannot be read, by the file's name."""
    folder = shutil.copytree(load_definition("fivr-5k").folder, tmp_path / "fivr-5k")
    head = json.loads((folder / "benchmark.json").read_text())
    (folder / "benchmark.json").write_text(json.dumps(head | {"format_version": 99}))
    with pytest.raises(DataError, match="format_version: Input should be less"):
        load_definition(folder)
    (folder / "benchmark.json").write_text(json.dumps(head))
    (folder / "labels.parquet").write_text("not a table")
    with pytest.raises(DataError, match=r"labels\.parquet"):
        load_definition(folder)
