"""Folders of generated files belong to one fingerprint."""

from pathlib import Path

import pytest

from hapvr.demo.corpus import prepare_folder
from hapvr.errors import DataError


def test_prepare_folder_keeps_equal_settings_and_replaces_others(tmp_path: Path) -> None:
    """A file survives another call with the same fingerprint, not one with a different one."""
    folder = tmp_path / "made"
    prepare_folder(folder, fingerprint="a")
    (folder / "videos").mkdir()
    (folder / "videos" / "x.mp4").touch()
    (folder / "benchmark.json").touch()
    prepare_folder(folder, fingerprint="a")
    assert (folder / "videos" / "x.mp4").exists()
    prepare_folder(folder, fingerprint="b")
    assert [path.name for path in folder.iterdir()] == ["corpus.json"]
    prepare_folder(folder, fingerprint="b")


@pytest.mark.parametrize(
    ("name", "message"),
    [("file", "something else"), ("foreign", "something else"), ("damaged", "is damaged")],
)
def test_prepare_folder_refuses_folders_of_others(tmp_path: Path, name: str, message: str) -> None:
    """A file in the place, foreign contents and a damaged state are errors that name the path."""
    (tmp_path / "file").touch()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "x").touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "corpus.json").write_text("{")
    with pytest.raises(DataError, match=f"{name}.* {message}"):
        prepare_folder(tmp_path / name, fingerprint="a")
