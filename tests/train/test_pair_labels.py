"""Labelled pairs at the border: what is read, and what is refused with its place and the next
step."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hapvr.errors import DataError
from hapvr.train.pair_labels import LABELS_NAME, CopiedSegment, PairLabels, read_pair_labels
from hapvr.train.settings import PairsConfig

VIDEOS = ("core/a.flv", "core/b.mp4", "core/c.mp4", "far/x.mp4", "far/y.mp4", "far/sub/c.mp4")
HEAD = "query,reference,query_start_s,query_end_s,reference_start_s,reference_end_s\n"
PAIR = "core/a.flv,b.mp4,0,5.5,2,8\n"
VCDB_PAIR = "a.flv,b.mp4,00:00:00,00:00:05,00:00:02,00:00:08\n"
SEGMENT = CopiedSegment(
    query="core/a.flv",
    reference="core/b.mp4",
    query_start_s=0,
    query_end_s=5.5,
    reference_start_s=2,
    reference_end_s=8,
)


def read(folder: Path, files: Mapping[str, str], **settings: Any) -> PairLabels:
    """What is read of these files; each of VIDEOS has 10 s."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    config = PairsConfig.model_validate({"path": "pairs.csv", "negatives_per_pair": 1, **settings})
    return read_pair_labels(
        config, resolve=lambda path: folder / path, video_ids=VIDEOS, length_s=lambda video_id: 10.0
    )


def test_a_table_names_videos_by_id_or_by_file(tmp_path: Path) -> None:
    """Without a list, distractors are all videos that no pair names."""
    labels = read(tmp_path, {"pairs.csv": HEAD + PAIR})
    assert labels.copies == (SEGMENT,)
    assert labels.distractors == ("core/c.mp4", "far/sub/c.mp4", "far/x.mp4", "far/y.mp4")
    listed = read(tmp_path, {"far.txt": "y.mp4\n\nfar/x.mp4\ny.mp4\n"}, distractors="far.txt")
    assert listed.distractors == ("far/x.mp4", "far/y.mp4")


def test_annotations_of_vcdb_are_read_from_all_files(tmp_path: Path) -> None:
    """Times of the query stand first; a video that is paired with itself labels nothing."""
    files = {
        "annotation/one.txt": VCDB_PAIR + "b.mp4,b.mp4,00:00:00,00:00:05,00:00:00,00:00:05\n",
        "annotation/two.txt": "b.mp4,a.flv,00:00:01,00:00:09,00:00:00,00:00:04",
    }
    settings = {"path": "annotation", "format": "vcdb", "expected_copies": 2}
    copies = read(tmp_path, files, **settings).copies
    assert copies[0] == SEGMENT.model_copy(update={"query_end_s": 5.0})
    assert copies[1].query == "core/b.mp4"
    assert copies[1].query_end_s == 9.0
    assert copies[1].shorter_s == 4.0


@pytest.mark.parametrize("expected", [1, 3])
def test_lines_of_a_video_with_itself_may_count_or_not(tmp_path: Path, expected: int) -> None:
    """VCDB pairs each core video with itself as well; they are never copies."""
    own = "".join(f"{name},{name},00:00:00,00:00:09,00:00:00,00:00:09\n" for name in ("a", "b"))
    settings = {"path": "annotation", "format": "vcdb", "expected_copies": expected}
    labels = read(tmp_path, {"annotation/one.txt": own + VCDB_PAIR}, **settings)
    assert [(copy.query, copy.reference) for copy in labels.copies] == [
        ("core/a.flv", "core/b.mp4")
    ]


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    """Neither in annotations nor in a list of distractors."""
    files = {"annotation/one.txt": "\ufeff" + VCDB_PAIR, "far.txt": "\ufeffy.mp4\n"}
    settings = {"path": "annotation", "format": "vcdb", "distractors": "far.txt"}
    labels = read(tmp_path, files, **settings)
    assert [copy.query for copy in labels.copies] == ["core/a.flv"]
    assert labels.distractors == ("far/y.mp4",)


def test_labels_are_stored_as_they_were_checked(tmp_path: Path) -> None:
    """A training keeps those that it began with."""
    labels = read(tmp_path, {"pairs.csv": HEAD + PAIR})
    labels.write(tmp_path)
    assert PairLabels.read(tmp_path, VIDEOS) == labels
    assert PairLabels.read(tmp_path, VIDEOS).digest == labels.digest
    assert "core" not in (tmp_path / LABELS_NAME).read_text()  # a video may be forgotten
    with pytest.raises(DataError, match="has no features any more; restore them, or train again"):
        PairLabels.read(tmp_path, VIDEOS[1:])


BAD_ROWS: dict[str, tuple[str, str]] = {
    "no row": ("", r"pairs\.csv has no pair; add a row"),
    "unknown video": (
        PAIR + "core/a.flv,d.mp4,0,5,0,5\n",
        r"pairs\.csv, line 3: 'd\.mp4' is not a training video with features; add it to a source",
    ),
    "the id of another source": (
        "own/a.flv,core/b.mp4,0,5,0,5\n",
        r"line 2: 'own/a\.flv' is not a training video with features; "
        r"core/a\.flv has the same file name: if it is meant, write its id",
    ),
    "a file name of two videos": (
        "a.flv,c.mp4,0,5,0,5\n",
        r"line 2: 2 training videos are called 'c\.mp4', such as core/c\.mp4; write the id",
    ),
    "time after the end": (
        "a.flv,b.mp4,0,5,8,11.5\n",
        r"line 2: reference goes from 8 s to 11\.5 s; "
        r"expected a part of core/b\.mp4, which has 10 s",
    ),
    "time before the beginning": (
        "a.flv,b.mp4,-1,5,0,5\n",
        r"line 2: query goes from -1 s to 5 s",
    ),
    "end before the beginning": ("a.flv,b.mp4,5,5,0,5\n", r"line 2: query goes from 5 s to 5 s"),
    "no number": ("a.flv,b.mp4,0,nan,0,5\n", r"line 2: query_end_s is 'nan'; expected seconds"),
    "row cut": (
        PAIR + "a.flv,b.mp4,0,5\n",
        r"line 3 has no reference_start_s; complete the row, or fetch the file again",
    ),
    "a video with itself": (
        "a.flv,core/a.flv,0,5,0,5\n",
        r"line 2 pairs core/a\.flv with itself; remove the line",
    ),
}
"""Rows of a table, and what is said of them."""

VCDB = {"path": "annotation", "format": "vcdb"}
BAD: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "no file": ({}, {}, r"pairs\.csv cannot be read"),
    "no column": (
        {"pairs.csv": "query,reference\na.flv,b.mp4\n"},
        {},
        r"pairs\.csv has no column query_start_s; expected a \.csv or \.parquet file",
    ),
    "distractor in a pair": (
        {"pairs.csv": HEAD + PAIR, "far.txt": "far/x.mp4\nb.mp4\n"},
        {"distractors": "far.txt"},
        r"far\.txt, line 2: the distractor core/b\.mp4 is in a labelled pair; remove it",
    ),
    "unknown distractor": (
        {"pairs.csv": HEAD + PAIR, "far.txt": "far/z.mp4\n"},
        {"distractors": "far.txt"},
        r"far\.txt, line 1: 'far/z\.mp4' is not a training video",
    ),
    "no list of distractors": (
        {"pairs.csv": HEAD + PAIR},
        {"distractors": "none.txt"},
        r"none\.txt cannot be read",
    ),
    "few distractors": (
        {"pairs.csv": HEAD + PAIR},
        {"negatives_per_pair": 5},
        r"there are 4 distractors, and a pair takes 5; add videos",
    ),
    "no annotation file": ({"annotation/readme.md": ""}, VCDB, r"annotation has no \.txt file"),
    "annotation cut within a line": (
        {"annotation/a.txt": VCDB_PAIR + "a.flv,b.mp4,00:00:00,00:0"},
        VCDB,
        r"a\.txt, line 2 is 'a\.flv,b\.mp4,00:00:00,00:0'; expected two file names and four times",
    ),
    "annotation cut within the last time": (
        {"annotation/a.txt": VCDB_PAIR[:-2]},
        VCDB,
        r"a\.txt, line 1 is .*Fetch the file again",
    ),
    "annotation cut between lines": (
        {"annotation/a.txt": VCDB_PAIR},
        {**VCDB, "expected_copies": 2},
        r"has 1 copied segments, and train\.pairs\.expected_copies is 2; a file may be cut",
    ),
}


def refusal(folder: Path, files: Mapping[str, str], **settings: Any) -> str:
    """What is said of files that are refused."""
    with pytest.raises(DataError) as caught:
        read(folder, files, **settings)
    return str(caught.value)


@pytest.mark.parametrize(("rows", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, rows: str, message: str) -> None:
    """The message names the file, the line, what was found and what to do."""
    text = refusal(tmp_path, {"pairs.csv": HEAD + rows})
    assert text.startswith("labelled pairs: ")
    assert re.search(message, text), text


@pytest.mark.parametrize("case", BAD)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, case: str) -> None:
    """The message names the file, the line, what was found and what to do."""
    files, settings, message = BAD[case]
    text = refusal(tmp_path, files, **settings)
    assert text.startswith("labelled pairs: ")
    assert re.search(message, text), text
