"""What an index says of damage to its files."""

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hapvr.errors import DamagedError
from hapvr.search.lance_index import LanceIndex
from tests.search.exact import DIMS, SMALL, ExactIndex, vectors_of


@pytest.mark.parametrize("kind", ["_versions/*", "data/*", "_indices/*/*"])
def test_files_that_are_cut_are_named(copy: tuple[Path, ExactIndex], kind: str) -> None:
    """An error that names the place and the hint, not a wrong answer or a crash."""
    folder, exact = copy
    for path in (folder / "frames.lance").glob(kind):
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DamagedError, match="hapvr index build"):
        LanceIndex(folder, SMALL).search_frames(vectors_of(exact.shards["a"])[:2], 5)


def test_a_manifest_with_wrong_lengths_never_reaches_the_engine(
    copy: tuple[Path, ExactIndex],
) -> None:
    """The engine panics at some of them, which is not an Exception of Python's. Manifests of
    versions before the current one are not read."""
    folder, _ = copy
    message_checks = set()
    for path in (folder / "frames.lance" / "_versions").glob("*.manifest"):
        whole = path.read_bytes()
        for place in range(len(whole) - 40, len(whole), 2):
            path.write_bytes(whole[:place] + b"\x01\0" + whole[place + 2 :])
            try:
                LanceIndex(folder, SMALL)
            except DamagedError as error:
                message_checks.add("is not what was written" in str(error))

        path.write_bytes(whole)

    assert message_checks == {True}


def test_damage_that_a_search_does_not_see_is_found(copy: tuple[Path, ExactIndex]) -> None:
    """70 % of two files of vectors zeroed, a byte of the codes flipped, a file gone: each is a
    sentence."""
    folder = copy[0]
    index = LanceIndex(folder, SMALL)
    assert index.verify() == []
    first, second, third = sorted((folder / "frames.lance" / "data").iterdir())
    for path in (first, second):
        whole = path.read_bytes()
        start = len(whole) // 10
        path.write_bytes(whole[:start] + bytes(7 * start) + whole[8 * start :])

    codes = max(
        (folder / "frames.lance").glob("_indices/*/*"), key=lambda path: path.stat().st_size
    )
    whole = codes.read_bytes()
    codes.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    third.unlink()
    wrong = index.verify()
    assert len(wrong) == 4
    for path in (first, second, codes, third):
        problem = "is missing" if path == third else "is not what"
        assert any(
            path.name in text and problem in text and "hapvr index build" in text for text in wrong
        )


def zero(path: Path) -> None:
    """Keeps its size."""
    path.write_bytes(bytes(path.stat().st_size))


def flip_in_place(path: Path) -> None:
    """One bit, by the same inode, with the times of before, as a tool that repairs disks does."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))

    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replace_by_another(path: Path) -> None:
    """A file of the same kind, from elsewhere in the table."""
    source_file = next(one for one in sorted(path.parent.iterdir()) if one != path)
    shutil.copyfile(source_file, path)


def put_pipe(path: Path) -> None:
    """Whoever reads it waits for a writer."""
    path.unlink()
    os.mkfifo(path)


HARMS = (zero, flip_in_place, cut, Path.unlink, replace_by_another, put_pipe)


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("kind", ["data", "_indices", "_versions"])
def test_a_damaged_file_lets_nobody_open_the_index(
    copy: tuple[Path, ExactIndex], kind: str, harm: Callable[[Path], object]
) -> None:
    """One sentence that names the place, for searches and for writers, which would store what they
    read under a new digest; also where the index was opened before."""
    folder, _ = copy
    LanceIndex(folder, SMALL)
    files = json.loads((folder / "index.json").read_text())["files"]
    harm(folder / next(name for name in files if name.startswith(f"frames.lance/{kind}/")))
    with pytest.raises(DamagedError, match=r"search: .*frames.lance.*hapvr index build"):
        LanceIndex(folder, SMALL)


def write_state(folder: Path, **values: object) -> None:
    """Put these values into the state of an index."""
    place = folder / "index.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | values))


@pytest.mark.parametrize(("name", "value"), [("files", {}), ("version", 1)], ids=str)
def test_an_index_with_the_state_of_another_table_is_not_opened(
    copy: tuple[Path, ExactIndex], name: str, value: object
) -> None:
    LanceIndex(copy[0], SMALL)
    write_state(copy[0], **{name: value})
    with pytest.raises(DamagedError, match="is of another table"):
        LanceIndex(copy[0], SMALL)


def test_the_shards_of_another_table_are_found(copy: tuple[Path, ExactIndex]) -> None:
    LanceIndex(copy[0], SMALL)
    write_state(copy[0], shards={})
    index = LanceIndex(copy[0], SMALL)
    assert any("is of another table" in text for text in index.verify())


@pytest.mark.parametrize("value", [None, [[1]], "x", math.nan], ids=str)
@pytest.mark.parametrize("name", ["revision", "version", "shards", "files"])
def test_a_wrong_value_of_the_state_is_named(tmp_path: Path, name: str, value: object) -> None:
    LanceIndex.create(tmp_path, DIMS, {}, SMALL)
    write_state(tmp_path, **{name: value})
    with pytest.raises(
        DamagedError, match=r"index\.json below .* is damaged \(.*hapvr index build"
    ):
        LanceIndex(tmp_path, SMALL)
