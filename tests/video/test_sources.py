"""Folders and lists as manifest entries."""

import os
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, strategies as st

from hapvr.errors import DataError
from hapvr.video.folders import ASIDE_MARKER, is_excluded, list_folder
from hapvr.video.sources import (
    entries_of_files,
    is_inside,
    path_of_text,
    query_files,
    read_lines,
    read_list,
    scan_folder,
    text_of_path,
    validate_video_id,
)
from tests.conftest import run_python

AS_OTHERS = """
import ctypes, os, sys
PR_CAPBSET_DROP = 24  # see prctl(2)
for capability in (1, 2):  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, see capabilities(7)
    if os.geteuid() == 0 and ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability):
        sys.exit("this process may not give up that permissions do not bind it")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Permissions hold for a superuser's program as they do for everybody's."""

LIST = """
import sys, warnings
from pathlib import Path
from hapvr.video.sources import scan_folder
warnings.showwarning = lambda message, *_: print(message)
for entry in scan_folder(Path(sys.argv[1]), source="s"):
    print(entry.video_id)
"""


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


HEADS: dict[str, bytes] = {
    "MP4": b"\x00\x00\x00\x20ftypisom",
    "QuickTime": b"\x00\x00\x00\x08wide\x00\x00",
    "Matroska": b"\x1a\x45\xdf\xa3\x9f\x42",
    "AVI": b"RIFF\x00\x10\x00\x00AVI LIST",
    "FLV": b"FLV\x01\x05",
    "ASF": bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c"),
    "a program stream": b"\x00\x00\x01\xba\x44",
    "a transport stream": 5 * (b"\x47" + bytes(187)),
    "a transport stream with times": 5 * (b"\x00\x00\x00\x00\x47" + bytes(187)),
    "Theora": b"OggS\x00\x02" + bytes(22) + b"\x80theora",
}
OTHER_HEADS: dict[str, bytes] = {
    "empty": b"",
    "JPEG": b"\xff\xd8\xff\xe0\x00\x10JFIF",
    "WebP": b"RIFF\x00\x10\x00\x00WEBPVP8 ",
    "HEIC": b"\x00\x00\x00\x20ftypheic",
    "sound": b"\x00\x00\x00\x20ftypM4A ",
    "Vorbis": b"OggS\x00\x02" + bytes(22) + b"\x01vorbis",
    "text": b"GG is no film" + bytes(400),
}


@pytest.mark.parametrize("name", ["a.jpg", "b.PNG", "c.mp4.bak", "d.mp4.part", "e", "f.webp"])
@pytest.mark.parametrize("head", HEADS)
def test_a_film_that_its_name_does_not_tell_is_named(tmp_path, head, name):
    """Once, and among the files with unknown suffixes no more."""
    touch(tmp_path, "film.mp4")
    (tmp_path / name).write_bytes(HEADS[head])
    suffix = (tmp_path / name).suffix.lower() or "no suffix"
    with pytest.warns(UserWarning, match="films by their first bytes") as warned:
        scan_folder(tmp_path, source="s")
    assert [str(warning.message) for warning in warned] == [
        f"source s: files that are films by their first bytes are left out: 1 with {suffix}, e.g. "
        f"{tmp_path / name}; rename them, for example to .mp4"
    ]


@pytest.mark.parametrize("head", OTHER_HEADS)
def test_a_picture_beside_films_is_not_named(tmp_path, recwarn, head):
    touch(tmp_path, "film.mp4")
    (tmp_path / "a.jpg").write_bytes(OTHER_HEADS[head])
    scan_folder(tmp_path, source="s")
    assert [str(warning.message) for warning in recwarn] == []


def test_a_folder_whose_only_film_has_another_name_is_refused_with_its_name(tmp_path):
    (tmp_path / "film.mp4.part").write_bytes(HEADS["MP4"])
    with pytest.raises(DataError, match=r"though .*film\.mp4\.part is one by its first bytes"):
        scan_folder(tmp_path, source="s")


def test_what_a_plan_writes_beside_the_videos_is_no_news(tmp_path, recwarn):
    touch(tmp_path, "a.mp4", "plan.sh", "plan.sh.record", "copies-aside/b.txt")
    assert [entry.video_id for entry in scan_folder(tmp_path, source="s")] == ["s/a.mp4"]
    assert [str(warning.message) for warning in recwarn] == []


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
    assert ids(entries) == ["s/bad\\xff.mp4", "s/looks\\x5cxfe.mp4"]
    paths = [path_of_text(entry.uri) for entry in entries]
    assert [os.fsencode(path.name) for path in paths] == [b"bad\xff.mp4", b"looks\\xfe.mp4"]
    assert [text_of_path(path) for path in paths] == [entry.uri for entry in entries]


# parts of names that an escape could be made of, or mistaken for
TRICKY = [
    b"\\x",
    b"\\x5c",
    b"\\xff",
    b"\xff",
    b"\\",
    b"x5c",
    b"ff",
    b"\xc2\x80",
    b"\n",
    b"\\x0a",
    b"a",
]
NAMES = st.lists(st.sampled_from(TRICKY) | st.binary(max_size=4), max_size=6).map(b"".join)


@given(NAMES.filter(lambda name: b"\0" not in name))
def test_every_path_has_its_own_text(name: bytes) -> None:
    """Any bytes come back; so two paths never have the same text."""
    path = Path(os.fsdecode(name))
    text = text_of_path(path)
    assert text.encode()  # no bytes that are not UTF-8
    assert path_of_text(text) == path


@given(st.sets(NAMES.filter(lambda name: not {0, 47} & {*name} and name not in (b"", b".", b".."))))
def test_every_file_has_an_id_of_its_own(names: set[bytes]) -> None:
    """Also where one name looks like the escaped form of another; an id is one line of text."""
    root = Path("/videos")
    files = [root / os.fsdecode(name) for name in names]
    entries = entries_of_files(files, root=root, source="s")
    assert {path_of_text(entry.uri) for entry in entries} == set(files)
    assert len(set(ids(entries))) == len(files)
    assert all(entry.video_id.isprintable() or "\n" not in entry.video_id for entry in entries)


def test_no_two_names_of_any_two_bytes_share_an_id() -> None:
    """A byte that is not UTF-8, and the text that stands for it."""
    root = Path("/videos")
    pairs = [(bytes([byte]), f"\\x{byte:02x}".encode()) for byte in range(1, 256) if byte != 47]
    for raw, escaped in pairs:
        files = [root / os.fsdecode(b"a" + name + b".mp4") for name in (raw, escaped)]
        alone = [entries_of_files([file], root=root, source="s")[0].video_id for file in files]
        assert alone[0] != alone[1]


def test_scan_folder_stays_inside_and_ends(tmp_path):
    """Links to files of the folder are videos; links out of it, to folders, in circles or to
    nothing add no foreign ones."""
    root = tmp_path / "root"
    outside = tmp_path / "outside"
    touch(tmp_path, "root/a/one.mp4", "outside/secret.mp4")
    (root / "loop").symlink_to(root)
    (root / "a" / "up").symlink_to(root / "a")
    (root / "out").symlink_to(outside)
    (root / "out.mp4").symlink_to(outside / "secret.mp4")
    (root / "same.mp4").symlink_to(root / "a" / "one.mp4")
    (root / "broken.mp4").symlink_to(root / "nothing.mp4")
    with pytest.warns(
        UserWarning, match="2 links lead out of the folder .*out; add the"
    ) as warnings:
        assert ids(scan_folder(root, source="s")) == ["s/a/one.mp4", "s/broken.mp4"]
    assert len(warnings) == 1


SYSTEM_PLACES = [
    "$RECYCLE.BIN/S-1-5-21/$R9.mp4",
    "shows/#recycle/a.mkv",
    "shows/@eaDir/SYNOVIDEO.mp4",
    "System Volume Information/a.mp4",
    "lost+found/#123.mp4",
    ".Trash-1000/files/a.mp4",
    ".Trashes/501/a.mp4",
    "copies-aside/b.mp4",
]


def test_bins_thumbnails_and_what_was_set_aside_are_not_read(tmp_path):
    """Whatever they are below of; named once, with counts, as people have not asked for that."""
    touch(
        tmp_path, *SYSTEM_PLACES, "mine.mp4", "a/my $recycle.bin.mp4", f"elsewhere/{ASIDE_MARKER}"
    )
    touch(tmp_path, "elsewhere/moved.mp4", "elsewhere/moved too.mp4")
    wanted = ["s/a/my $recycle.bin.mp4", "s/mine.mp4"]
    with pytest.warns(UserWarning, match="files are excluded") as warnings:
        assert ids(scan_folder(tmp_path, source="s")) == wanted
    assert [
        str(one.message).removeprefix("source s: files are excluded: ") for one in warnings
    ] == [
        "1 in #recycle, 1 in $RECYCLE.BIN, 1 in @eaDir, 1 in System Volume Information, "
        "1 in copies-aside, 2 in elsewhere, 1 in lost+found"
    ]
    assert ids(scan_folder(tmp_path, source="s", notices=False)) == wanted
    assert len(query_files(tmp_path)) == 2


@pytest.mark.parametrize(
    ("path", "pattern", "excluded"),
    [
        ("a/drafts/b.mp4", "drafts", True),
        ("a/drafts of b.mp4", "drafts", False),
        ("a/b.PART.mp4", "*.part.mp4", True),
        ("a/b.mp4", "a/b.mp4", True),
        ("a/b/c.mp4", "a/b", True),
        ("a/b/c.mp4", "a/b/", True),
        ("x/a/b/c.mp4", "a/b", False),
        ("a/bc.mp4", "a/b", False),
        ("a/2024/c.mp4", "a/20??/", True),
    ],
)
def test_patterns_exclude_names_and_paths(path, pattern, excluded):
    assert is_excluded(Path(path), pattern) == excluded


def test_what_patterns_exclude_is_counted(tmp_path):
    touch(tmp_path, "a.mp4", "drafts/b.mp4", "drafts/notes.txt", "c.part.mp4")
    listing = list_folder(tmp_path, exclude=("drafts", "*.part.mp4"))
    assert listing.files == (tmp_path / "a.mp4",)
    assert listing.excluded == {"drafts": 1, "*.part.mp4": 1}


@pytest.mark.parametrize(
    ("video_id", "folder", "inside"),
    [
        ("s/a/b.mp4", "s", True),
        ("s/a/b.mp4", "s/a/", True),
        ("s/a/b.mp4", "s/a/b.mp4", True),
        ("s/a/b.mp4", "", True),
        ("s/ab/b.mp4", "s/a", False),
        ("s2/a.mp4", "s", False),
        ("s/a/b.mp4", "s/a/b", False),
    ],
)
def test_folders_of_ids_are_whole_parts(video_id, folder, inside):
    assert is_inside(video_id, folder) == inside


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a.mp4\r\n# no\n\nb c.mp4\n", ["a.mp4", "b c.mp4"]),
        (b"\xef\xbb\xbfa.mp4", ["a.mp4"]),
        ("ä.mp4\nb.mp4".encode("utf-16"), ["ä.mp4", "b.mp4"]),
        ("ä.mp4".encode("latin-1"), [os.fsdecode(b"\xe4.mp4")]),
        ("日本.mp4".encode("shift-jis"), [os.fsdecode("日本.mp4".encode("shift-jis"))]),
        ("a\u2028b\x85c.mp4".encode(), ["a\u2028b\x85c.mp4"]),
    ],
)
def test_lists_are_read_as_the_file_system_reads_names(tmp_path, content, lines):
    path = tmp_path / "list.txt"
    path.write_bytes(content)
    assert read_lines(path, folder=tmp_path) == lines


@pytest.mark.parametrize(
    ("mode", "listed", "named"),
    [
        pytest.param(0o000, ["s/a.mp4"], ["locked"], id="nothing"),
        pytest.param(0o111, ["s/a.mp4"], ["locked"], id="may-be-entered"),
        pytest.param(0o444, ["s/a.mp4", "s/locked/c.mp4"], ["below"], id="may-be-listed"),
    ],
)
def test_a_folder_that_may_not_be_read_is_named_and_the_others_are_listed(
    tmp_path, mode, listed, named
):
    touch(tmp_path, "a.mp4", "locked/c.mp4", "locked/below/d.mp4")
    (tmp_path / "into").symlink_to(tmp_path / "locked" / "below")
    locked = tmp_path / "locked"
    locked.chmod(mode)
    try:
        lines = run_python("-c", AS_OTHERS, "-c", LIST, tmp_path).splitlines()
    finally:
        locked.chmod(0o700)

    assert [line for line in lines if line.startswith("s/")] == listed
    problems = [line for line in lines if "cannot be listed (Permission denied)" in line]
    assert [Path(line.partition(" cannot")[0]).name for line in problems] == named


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
        ("name\nx\n", "expected columns `url`, `video_id`"),
        (
            "http://host/a.mp4\n",
            "expected columns `url`, `video_id` or both, got 'http://host/a.mp4'",
        ),
        ("", "list.csv is not a readable CSV"),
        ("url\nfile:///etc/passwd\n", "row 1: expected columns `url`, `video_id` or both"),
        ("url\nftp://host/a\n", "got 'ftp://host/a'"),
        ("video_id\nshort\n", "or an 11-character YouTube id, got 'short'"),
        ("video_id,url\n../up,http://host/a\n", "row 1: video id 's/../up'"),
        (
            "video_id,url\nsame,http://me:pw@h/a\nsame,http://h/b\n",
            "row 2: id 's/same' already stands for http://h/a",
        ),
        ("url,video_id\n", "list.csv has no row"),
        ("url\rhttp://host/a\rhttp://host/b\r", "its lines end in carriage returns alone"),
        ("url\nhttp://host/a\0b\n", "row 1: expected columns `url`, `video_id` or both"),
    ],
)
def test_read_list_names_the_wrong_row(tmp_path, text, message):
    """What cannot be fetched, or should not be, is refused before anything starts."""
    path = tmp_path / "list.csv"
    path.write_bytes(text.encode())
    with pytest.raises(DataError) as caught:
        read_list(path, source="s")
    assert message in str(caught.value)


@pytest.mark.parametrize("number", [1.0, float("nan")])
def test_ids_that_became_fractions_are_refused(tmp_path, number):
    """As where a program had whole numbers, one of which is missing."""
    path = tmp_path / "list.parquet"
    pl.DataFrame({"video_id": [number], "url": ["http://host/a"]}).write_parquet(path)
    with pytest.raises(DataError, match="row 1: expected ids that are texts or whole numbers"):
        read_list(path, source="s")


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
