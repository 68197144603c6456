"""Files below a data root that were made, and are lost or were removed by us."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hapvr.care.forgetting import DIGESTS, read_journal
from hapvr.data import manifest
from hapvr.data.filesystem import DataRoot
from hapvr.data.set_aside import set_aside
from hapvr.errors import DamagedError, DataError
from hapvr.search import marks

RECORDS: dict[str, Callable[[DataRoot], object]] = {
    manifest.FORGOTTEN: manifest.forgotten_digests,
    manifest.FORGETTING: read_journal,
    DIGESTS: read_journal,
    manifest.PLANNED: manifest.planned_moves,
    marks.PLACE: marks.read_marks,
}
"""Place of a record that nothing can rebuild -> what reads it."""


@pytest.fixture
def root(tmp_path: Path) -> DataRoot:
    """With one file."""
    root = DataRoot(tmp_path)
    root.write_json("a/b.json", {})
    return root


@pytest.mark.parametrize("put", [None, Path.mkdir, os.mkfifo])
def test_a_file_that_somebody_else_removed_is_lost(
    root: DataRoot, put: Callable[[Path], object] | None
) -> None:
    """Also where something else is in its place."""
    assert root.lost_files() == []
    file = root.local_path("a/b.json")
    file.unlink()
    if put is not None:
        put(file)
    assert root.lost_files() == ["a/b.json"]


def test_a_file_that_was_made_again_is_not_lost(root: DataRoot) -> None:
    root.local_path("a/b.json").unlink()
    root.write_json("a/b.json", {})
    assert root.lost_files() == []


@pytest.mark.parametrize(
    "remove", [lambda root: root.delete("a/b.json"), lambda root: root.delete_folder("a")]
)
def test_a_file_that_we_removed_is_not_lost(
    root: DataRoot, remove: Callable[[DataRoot], None]
) -> None:
    remove(root)
    assert not root.exists("a/b.json")
    assert root.lost_files() == []


def replace_in_vain(root: DataRoot) -> None:
    """As a repair whose result is not whole."""

    def refuse() -> None:
        raise DataError("it cannot be made")

    with set_aside(root, "a/b.json", verify=refuse):
        root.write_json("a/b.json", {"half": 1})


def test_a_file_that_was_put_back_after_a_failed_repair_can_be_lost(root: DataRoot) -> None:
    with pytest.raises(DataError, match="cannot be made"):
        replace_in_vain(root)
    assert root.read_json("a/b.json") == {}
    root.local_path("a/b.json").unlink()
    assert root.lost_files() == ["a/b.json"]


def test_a_note_that_cannot_be_written_stops_no_write(tmp_path: Path) -> None:
    (tmp_path / ".made").touch()
    root = DataRoot(tmp_path)
    root.write_json("a/b.json", {"a": 1})
    assert root.read_json("a/b.json") == {"a": 1}


@pytest.mark.parametrize("place", RECORDS)
def test_a_record_that_is_lost_is_not_taken_for_empty(tmp_path: Path, place: str) -> None:
    """Pairs that somebody marked as no match would be grouped, forgotten videos listed."""
    root = DataRoot(tmp_path)
    RECORDS[place](root)  # never made: nothing is wrong
    root.write_json(place, {})
    root.local_path(place).unlink()
    with pytest.raises(DamagedError, match=f"{place} below .* restore it from a copy"):
        RECORDS[place](root)
    root.delete_folder(f".made/{Path(place).parent}")
    RECORDS[place](root)  # as the message says, of one that was removed on purpose
