"""Files that appear whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hapvr.files import write_atomic


def write_half(target: Path, index: Path) -> None:
    """A writer that dies after its first bytes."""
    with write_atomic(target, invalidates=index) as part:
        part.write_text("ha")
        raise RuntimeError("plug pulled")


def test_content_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part is flushed, then renamed, then the folder is flushed: a power cut leaves the old content or the new one."""
    target = tmp_path / "new folder" / "a.json"
    flushed: list[tuple[Path, bool]] = []

    def fsync(descriptor: int) -> None:
        flushed.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")), target.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    with write_atomic(target) as part:
        part.write_text("whole")
    assert flushed == [(part, False), (target.parent, True)]
    assert target.read_text() == "whole"
    assert not part.exists()


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    """Neither the old content nor the file that describes it is touched, and no part stays."""
    target, index = tmp_path / "data", tmp_path / "index"
    target.write_text("old")
    index.write_text("of the old")
    with pytest.raises(RuntimeError, match="pulled"):
        write_half(target, index)
    assert (target.read_text(), index.read_text()) == ("old", "of the old")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "index"]
    with write_atomic(target, invalidates=index) as part:
        part.write_text("new")
        assert index.exists()
    assert target.read_text() == "new"
    assert not index.exists()


def test_what_a_killed_process_left_is_not_written_through(tmp_path: Path) -> None:
    """A stale part that is a hard link to a user's file does not carry the new content into that file."""
    users = tmp_path / "user.mp4"
    users.write_text("precious")
    os.link(users, tmp_path / "copy.mp4.part")
    with write_atomic(tmp_path / "copy.mp4") as part:
        part.write_text("other")
    assert users.read_text() == "precious"
