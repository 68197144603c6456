"""The state of a folder of generated videos."""

from __future__ import annotations

from pathlib import Path

import pytest

from hapvr.corpus.build_state import begin, finish, is_complete
from hapvr.errors import DataError


def test_begin_keeps_equal_settings_and_replaces_others(tmp_path: Path) -> None:
    """A file survives another start with the same fingerprint, not one with a different one."""
    folder = tmp_path / "made"
    begin(folder, fingerprint="a")
    (folder / "videos" / "x.mp4").touch()
    begin(folder, fingerprint="a")
    assert (folder / "videos" / "x.mp4").exists()
    assert not is_complete(folder, fingerprint="a")
    finish(folder, fingerprint="a")
    assert is_complete(folder, fingerprint="a")
    assert not is_complete(folder, fingerprint="b")
    begin(folder, fingerprint="b")
    assert not (folder / "videos" / "x.mp4").exists()
    assert not is_complete(folder, fingerprint="a")


def test_begin_refuses_folders_of_others(tmp_path: Path) -> None:
    """A file in the place, foreign contents and a damaged state are errors that name the path."""
    (tmp_path / "file").touch()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "x").touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "corpus.json").write_text("{")
    for name, message in (("file", "something else"), ("foreign", "something else"), ("damaged", "is damaged")):
        with pytest.raises(DataError, match=f"{name}.* {message}"):
            begin(tmp_path / name, fingerprint="a")
