"""JSON files below a data root that hold something else than was written."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hapvr.care.forgetting import DIGESTS, read_journal
from hapvr.data import manifest
from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError
from hapvr.networks.whitening import PROVENANCE_NAME, whitening_provenance
from hapvr.search import marks
from hapvr.search.current import CURRENT, current_index
from hapvr.search.frame_index import STATE_FILE, read_state
from hapvr.search.kept_answers import read_answer

JOB = "abcdefghijklmnop"
READERS: dict[str, Callable[[DataRoot], object]] = {
    manifest.FORGOTTEN: manifest.forgotten_digests,
    manifest.FORGETTING: read_journal,
    DIGESTS: read_journal,
    manifest.PLANNED: manifest.planned_moves,
    marks.PLACE: marks.read_marks,
    f"answers/{JOB}.json": lambda root: read_answer(root, JOB),
    PROVENANCE_NAME: whitening_provenance,
    CURRENT: current_index,
    STATE_FILE: read_state,
}
"""Place of a record -> what reads it."""

CONTENTS = {
    "nothing": b"",
    "null": b"null",
    "a number": b"7",
    "a text": b'"x"',
    "nested too deeply": b"[" * 100_000,
    "objects nested too deeply": b'{"record": ' * 100_000,
    "zeros": b"\0" * 64,
    "no UTF-8": b'{"names": ["\xff"]}',
    "numbers for lists": b'{"names": 5, "moved": 5, "pairs": 5, "record": 5, "sha256": 5}',
    "texts for lists": b'{"names": "ab", "moved": "ab", "pairs": "ab", "record": "ab"}',
    "lists for texts": b'{"names": [[1]], "moved": [[1]], "pairs": [[1]], "sha256": [1]}',
    "matches that are none": b'{"record": {"answer": {"matches": ["x"]}}, "sha256": ""}',
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("place", READERS)
def test_a_record_that_holds_something_else_is_damage(
    tmp_path: Path, place: str, content: bytes
) -> None:
    """One sentence that names the file, and never nothing: names that were forgotten would be
    listed again."""
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=path.name):
        READERS[place](DataRoot(tmp_path))


def test_what_several_remove_at_once_is_removed(tmp_path: Path) -> None:
    """Services and calls that tidy up at the same time do not fail."""
    names = [f"answers/{number}.json" for number in range(300)]
    (tmp_path / "answers").mkdir()
    for name in names:
        (tmp_path / name).touch()
    root = DataRoot(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        removals = [pool.submit(root.delete, name) for name in names for _ in range(4)]
    assert [removal.exception() for removal in removals if removal.exception()] == []
    assert root.list_files("answers") == []
