"""Marks: in either order, replaced, taken back, kept through damage of other files, and safe from
two writers."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import pytest

from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import FORGOTTEN, name_digest
from hapvr.errors import DamagedError, VideoError
from hapvr.files import digest_of, file_sha256
from hapvr.search.marks import MARKS_LOCK, PLACE, mark, read_marks, unmark
from hapvr.search.marks_table import import_marks

A = "a" * 64
B = "b" * 64
C = "c" * 64


def test_a_mark_holds_in_both_orders_until_it_is_taken_back(tmp_path: Path) -> None:
    root = DataRoot(tmp_path)
    assert read_marks(root).verdict(A, B) is None
    mark(root, B, A, "not_a_match", names=("second.mp4", "first.mp4"))
    assert read_marks(root).verdict(A, B) == read_marks(root).verdict(B, A) == "not_a_match"
    assert read_marks(root).rows()[0].names == ("first.mp4", "second.mp4")
    mark(root, A, B, "match", names=("first.mp4", "second.mp4"))
    assert [row.verdict for row in read_marks(root).rows()] == ["match"]
    assert unmark(root, B, A) is not None
    assert read_marks(root).verdict(A, B) is None
    assert unmark(root, A, B) is None


@pytest.mark.filterwarnings("ignore:.*being made by another process")
def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    """Forty marks by eight threads are forty marks."""
    root = DataRoot(tmp_path)

    def mark_one(number: int) -> None:
        mark(root, A, f"{number:064d}", "match", names=("a", str(number)))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(mark_one, range(40)))
    assert len(read_marks(root)) == 40


@pytest.mark.parametrize("call", ["mark", "import"])
def test_files_are_read_before_others_have_to_wait(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file would keep everybody else from marking, and from forgetting."""
    root = DataRoot(tmp_path / "data")
    film = tmp_path / "film.mp4"
    film.write_bytes(b"film")
    table = tmp_path / "marks.csv"
    table.write_text(f"first,second,verdict\n{film},{A},match\n")
    read: list[Path] = []

    def take_lock(path: Path) -> None:
        with root.lock(MARKS_LOCK):
            read.append(path)

    def read_while_others_mark(path: Path) -> str:
        waiting = Thread(target=take_lock, args=(path,), daemon=True)
        waiting.start()
        waiting.join(5)
        return file_sha256(path)

    monkeypatch.setattr("hapvr.search.marks.file_sha256", read_while_others_mark)
    if call == "mark":
        mark(root, str(film), A, "match")
    else:
        import_marks(root, table)
    assert read == [film]
    assert len(read_marks(root)) == 1


def marked(root: DataRoot, _: Path) -> None:
    mark(root, A, B, "match", names=("in/gone.mp4", "b"))


@pytest.mark.parametrize("call", [marked, import_marks], ids=["mark", "import"])
def test_a_forgotten_video_is_not_named_by_a_mark_of_digests(
    call: Callable[[DataRoot, Path], object], tmp_path: Path
) -> None:
    """Such as one of a table that was written before it was forgotten."""
    root = DataRoot(tmp_path / "data")
    root.write_json(FORGOTTEN, {"names": [name_digest("in/gone.mp4")]})
    table = tmp_path / "marks.csv"
    table.write_text(f"first,second,verdict,first_name\n{A},{B},match,in/gone.mp4\n{A},{C},match,a")
    with pytest.raises(VideoError, match=r"in/gone.mp4 was forgotten"):
        call(root, table)
    assert not read_marks(root)


ROW = {
    "first": A,
    "second": B,
    "verdict": "match",
    "names": ["a", "b"],
    "since": "2026-11-23",
    "by": "someone",
}


CHANGES: tuple[dict[str, object], ...] = (
    {"first": B, "second": A},
    {"verdict": "perhaps"},
    {"since": 1},
)
BROKEN: tuple[object, ...] = ({}, [{}], *([ROW | one] for one in CHANGES))


FILES = [
    *({"pairs": pairs, "sha256": digest_of(pairs)} for pairs in BROKEN),
    {"pairs": [ROW], "sha256": digest_of([])},
]


@pytest.mark.parametrize("text", [*map(json.dumps, FILES), "[]", "{"])
@pytest.mark.parametrize(
    "call",
    [read_marks, lambda root: mark(root, A, C, "match", names=("a", "c"))],
    ids=["read", "mark"],
)
def test_damage_is_named_and_nothing_is_overwritten(
    tmp_path: Path, text: str, call: Callable[[DataRoot], object]
) -> None:
    """Marks are work of people: a file that cannot be read stays as it is."""
    root = DataRoot(tmp_path)
    (tmp_path / PLACE).parent.mkdir()
    (tmp_path / PLACE).write_text(json.dumps({"pairs": [ROW], "sha256": digest_of([ROW])}))
    assert read_marks(root).verdict(A, B) == "match"
    (tmp_path / PLACE).write_text(text)
    with pytest.raises(DamagedError, match=PLACE):
        call(root)
    assert (tmp_path / PLACE).read_text() == text
