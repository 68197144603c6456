"""Files that appear whole, or not at all."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import save_file

from hapvr.benchmark.definition import load_definition
from hapvr.benchmark.hdf5 import survey_hdf5
from hapvr.benchmark.ranking import read_pairs
from hapvr.config_file import load_config
from hapvr.data.filesystem import DataRoot
from hapvr.errors import ConfigError, DamagedError, DataError, HapvrError
from hapvr.files import (
    PART_SUFFIX,
    file_sha256,
    naming_full_disk,
    read_json_as,
    read_json_lines,
    write_atomic,
    write_text,
)
from hapvr.model.archive import read_archive
from hapvr.search.marks_table import read_marks_table
from hapvr.serving.service import read_tokens
from hapvr.tables import read_frame, read_user_table
from tests.steps.data_projects import small_disk

STEPS = TypeAdapter(dict[str, int])


@dataclass(frozen=True)
class Keyed:
    key: str


READERS: dict[str, Callable[[Path], object]] = {
    "config": load_config,
    "hdf5": survey_hdf5,
    "weights": read_archive,
    "similarities": lambda path: read_pairs(load_definition("fivr-5k"), path),
    "marks": lambda path: read_marks_table(DataRoot("."), path),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_file_that_is_not_there_is_named_in_plain_words(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    """Not by the number and words of the operating system."""
    with pytest.raises(HapvrError, match=r"absent\.x.*there is no such file") as caught:
        read(tmp_path / "absent.x")
    assert "Errno" not in str(caught.value)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("written", [(), (0,), (1 << 40, 1 << 30), (0, 1 << 39)])
def test_what_was_never_written_is_not_digested(tmp_path: Path, written: tuple[int, ...]) -> None:
    """Reading two terabytes of zeros takes half an hour; some bytes between them change nothing."""
    path = tmp_path / "sparse.mp4"
    with path.open("wb") as file:
        file.truncate(1 << 41)
        for place in written:
            file.seek(place)
            file.write(b"film")

    with pytest.raises(OSError, match="was never written"):
        file_sha256(path)


def test_a_file_with_a_hole_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "sparse.mp4"
    path.write_bytes(b"film")
    os.truncate(path, 1 << 20)
    assert file_sha256(path) == sha256(b"film" + bytes((1 << 20) - 4)).hexdigest()


@pytest.mark.parametrize("name", ["folder", "/dev/zero", "pipe", "a\0", "\ud800"])
def test_only_regular_files_are_read(name: str, tmp_path: Path) -> None:
    """Each reader refuses what may never end, and names that a library could cut, in bounded time
    and by its own error."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / name
    readers: list[tuple[Callable[[Path], object], type[Exception]]] = [
        (file_sha256, OSError),
        (lambda path: read_json_as(path, Keyed, hint="make it again"), DamagedError),
        (lambda path: read_json_lines(path, STEPS), OSError),
        (read_frame, OSError),
        (read_user_table, OSError),
        (load_config, ConfigError),
        (survey_hdf5, DamagedError),
        (read_tokens, ConfigError),
        (lambda path: DataRoot(path.parent).open(path.name), DataError),
    ]
    for read, error in readers:
        with pytest.raises(error, match=r"no(t a)? (regular )?file|not a relative path"):
            read(path)


WEIGHTS = {"weights": torch.zeros(2000)}


def write_half(target: Path, index: Path) -> None:
    """A writer that dies after its first bytes."""
    with write_atomic(target, invalidates=index) as part:
        part.write_text("ha")
        raise RuntimeError("plug pulled")


def test_content_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part is flushed, then renamed, then the folder is flushed: a power cut leaves the old
    content or the new one."""
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
    target = tmp_path / "data"
    index = tmp_path / "index"
    target.write_text("old")
    index.write_text("of the old")
    with pytest.raises(RuntimeError, match="pulled"):
        write_half(target, index)
    assert target.read_text() == "old"
    assert index.read_text() == "of the old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "index"]
    with write_atomic(target, invalidates=index) as part:
        part.write_text("new")
        assert index.exists()

    assert target.read_text() == "new"
    assert not index.exists()


def test_what_a_killed_process_left_is_not_written_through(tmp_path: Path) -> None:
    """A stale part that is a hard link to a user's file does not carry the new content into that
    file."""
    users = tmp_path / "user.mp4"
    users.write_text("precious")
    os.link(users, tmp_path / f"copy.mp4{PART_SUFFIX}")
    with write_atomic(tmp_path / "copy.mp4") as part:
        part.write_text("other")
    assert users.read_text() == "precious"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\0\0\0", b"\xff", b"{}", b"[" * 100_000])
def test_a_damaged_json_file_is_named(tmp_path: Path, content: bytes) -> None:
    """Whatever stands in it, the error has the file and what to do."""
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DamagedError, match=r"a\.json is .*; make it again"):
        read_json_as(tmp_path / "a.json", Keyed, hint="make it again")


def test_a_json_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match=r"gone\.json is .*; make it again"):
        read_json_as(tmp_path / "gone.json", Keyed, hint="make it again")


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    """A line that a power cut left half written or full of zeros does not take the others with
    it."""
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'{"step": 0}\n\0\0\0\n{"step": 2}\n{"step": "x"}\n5\n{"st')
    with pytest.warns(UserWarning, match=r"history.jsonl: line \d is damaged .* skipped"):
        assert read_json_lines(path, STEPS) == [{"step": 0}, {"step": 2}]
    assert read_json_lines(tmp_path / "gone.jsonl", STEPS) == []


@pytest.mark.parametrize(
    "write", [lambda path: path.write_bytes(b"x" * 5000), lambda path: save_file(WEIGHTS, path)]
)
def test_a_full_disk_is_named(tmp_path: Path, write: Callable[[Path], object]) -> None:
    """Plain files and safetensors alike; another error of the system passes as it is."""
    full = pytest.raises(DataError, match=r"cannot write below .* Free space .*; run again")
    with (
        small_disk(2000),
        full,
        naming_full_disk(tmp_path, hint="run again"),
        write_atomic(tmp_path / "a") as part,
    ):
        write(part)

    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError), naming_full_disk(tmp_path, hint="run again"):
        (tmp_path / "gone").read_bytes()


def test_a_file_that_does_not_fit_on_the_disk_is_named(tmp_path: Path) -> None:
    """The system's own error names none when a file that is open cannot be written."""
    with small_disk(2000), pytest.raises(OSError, match=re.escape(f"{tmp_path}/a")):
        write_text(tmp_path / "a", "x" * 5000)


def test_json_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """As some editors write it."""
    path = tmp_path / "values.json"
    path.write_text('{"a": 1}', encoding="utf-8-sig")
    assert read_json_as(path, dict[str, int], hint="") == {"a": 1}
    assert read_json_lines(path, TypeAdapter(dict[str, int])) == [{"a": 1}]
    assert DataRoot(tmp_path).read_json("values.json") == {"a": 1}
