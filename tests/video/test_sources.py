"""Folders and lists as manifest entries."""

import errno
import os
from pathlib import Path

import polars as pl
import pytest

from hapvr.cli import _say_warning
from hapvr.errors import DataError
from hapvr.video.sources import (
    path_of_text,
    read_list,
    scan_folder,
    text_of_path,
    validate_video_id,
)


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def ids(result):
    return [entry.video_id for entry in result]


def test_scan_folder_lists_videos_by_suffix_in_order(tmp_path):
    """All depths, any case of suffix; other and hidden files are none."""
    touch(
        tmp_path,
        "b.mp4",
        "a/c.MKV",
        "a/b/d.webm",
        "README.md",
        "a/notes.txt",
        ".hidden.mp4",
        ".cache/e.mp4",
        "bare",
    )
    with pytest.warns(UserWarning, match="source s: .* are left out: 1 with no suffix"):
        result = scan_folder(tmp_path, source="s")
    assert ids(result) == ["s/a/b/d.webm", "s/a/c.MKV", "s/b.mp4"]
    assert [entry.uri for entry in result] == [str(tmp_path / id_[2:]) for id_ in ids(result)]


def test_scan_folder_escapes_names_that_are_not_utf8(tmp_path):
    """A name that is no text becomes a row, whose file is found; so is a file whose name only looks
    escaped."""
    try:
        with open(os.fsencode(tmp_path) + b"/bad\xff.mp4", "wb"):
            pass
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    touch(tmp_path, "looks\\xfe.mp4")
    entries = scan_folder(tmp_path, source="s")
    assert [entry.video_id for entry in entries] == ["s/bad\\xff.mp4", "s/looks\\xfe.mp4"]
    found = [path_of_text(entry.uri) for entry in entries]
    assert [os.fsencode(path.name) for path in found] == [b"bad\xff.mp4", b"looks\\xfe.mp4"]
    assert [text_of_path(path) for path in found] == [entry.uri for entry in entries]
    absent = str(tmp_path / "absent\\xff.mp4")
    assert path_of_text(absent) == Path(absent)


def test_scan_folder_stays_inside_and_ends(tmp_path):
    """Links to files of the folder are videos; links out of it, to folders, in circles or to
    nothing add no foreign ones."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    touch(tmp_path, "root/a/one.mp4", "outside/secret.mp4")
    (root / "loop").symlink_to(root)
    (root / "a" / "up").symlink_to(root / "a")
    (root / "out").symlink_to(outside)
    (root / "out.mp4").symlink_to(outside / "secret.mp4")
    (root / "same.mp4").symlink_to(root / "a" / "one.mp4")
    (root / "broken.mp4").symlink_to(root / "nothing.mp4")
    assert ids(scan_folder(root, source="s")) == ["s/a/one.mp4", "s/broken.mp4"]


def test_a_folder_that_cannot_be_listed_is_named_on_the_terminal(tmp_path, monkeypatch, capsys):
    def listed(folder, list_folder=os.scandir):
        if str(folder).endswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return list_folder(folder)

    touch(tmp_path, "a.mp4", "b/locked/c.mp4")
    monkeypatch.setattr(os, "scandir", listed)
    with monkeypatch.context() as shown:
        shown.setattr("warnings.showwarning", _say_warning)
        assert ids(scan_folder(tmp_path, source="s")) == ["s/a.mp4"]
    assert (
        "locked cannot be listed (Permission denied); its files are left out"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_read_list_reads_ids_and_urls(tmp_path, suffix):
    """Ids of YouTube alone, URLs alone, or both; repeated rows count once."""
    table = pl.DataFrame(
        {
            "video_id": ["dQw4w9WgXcQ", None, "mine", "mine"],
            "url": [None, "https://me:pw@host/a.mp4", "http://host/c.mp4", "http://host/c.mp4"],
            "title": ["x"] * 4,
        }
    )
    path = tmp_path / f"list.{suffix}"
    table.write_csv(path) if suffix == "csv" else table.write_parquet(path)
    entries = read_list(path, source="s")
    assert [(entry.video_id, entry.uri) for entry in entries] == [
        ("s/dQw4w9WgXcQ", "youtube:dQw4w9WgXcQ"),
        ("s/https:%2F%2Fhost%2Fa.mp4", "https://me:pw@host/a.mp4"),  # ids are shown everywhere
        ("s/mine", "http://host/c.mp4"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name\nx\n", "wanted columns `url`, `video_id`"),
        (
            "http://host/a.mp4\n",
            "wanted columns `url`, `video_id` or both, got 'http://host/a.mp4'",
        ),
        ("", "list.csv is not a readable CSV"),
        ("url\nfile:///etc/passwd\n", "row 1: wanted columns `url`, `video_id` or both"),
        ("url\nftp://host/a\n", "got 'ftp://host/a'"),
        ("video_id\nshort\n", "or an 11-character YouTube id, got 'short'"),
        ("video_id,url\n../up,http://host/a\n", "row 1: video id 's/../up'"),
        (
            "video_id,url\nsame,http://me:pw@h/a\nsame,http://h/b\n",
            "row 2: id 's/same' already stands for http://h/a",
        ),
    ],
)
def test_read_list_names_the_wrong_row(tmp_path, text, message):
    """What cannot be fetched, or should not be, is refused before anything starts."""
    path = tmp_path / "list.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_list(path, source="s")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "name",
        "/name",
        "s/",
        "s/a//b",
        "s/../a",
        "s/./a",
        "s/a\nb",
        "s/a\x00",
        "s/" + "x" * 2000,
    ],
)
def test_validate_video_id_refuses_what_could_mislead(bad):
    """Ids are relative, one line, and lead nowhere else."""
    with pytest.raises(DataError, match="video id"):
        validate_video_id(bad)
