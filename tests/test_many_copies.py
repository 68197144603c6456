"""A collection with more copies of one video than a search takes for related."""

from pathlib import Path

import pytest

from tests.commands.conftest import Call, call
from tests.test_copies_kept import GOOD, pictures, write

__all__ = ["call"]

NUM_COPIES = 24
NUM_OTHERS = 5


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_of_many_copies_are_found_and_grouped(call: Call, tmp_path: Path) -> None:
    library = tmp_path / "library"
    data = ("--data", str(tmp_path / "data"))
    frames = pictures(0)
    for number in range(NUM_COPIES):
        path = library / f"copy {number:02d}.mp4"
        write(path, frames, crf=GOOD + number // 2, preset="ultrafast")
    for number in range(NUM_OTHERS):
        path = library / f"other {number}.mp4"
        write(path, pictures(number + 1), crf=GOOD, preset="ultrafast")

    added = call("index", "add", str(library), *data, "--json")
    assert added.code == 0, added.error
    grouped = call("duplicates", *data, "--json").json["groups"]
    assert {row["group"] for row in grouped} == {grouped[0]["group"]}
    assert len(grouped) == NUM_COPIES

    query = str(library / "copy 00.mp4")
    answer = call("search", query, *data, "--top", "100", "--all", "--json").json
    verdicts = {row["reference"]: row["verdict"] for row in answer["queries"][0]["matches"]}
    matches = {name for name, verdict in verdicts.items() if verdict == "match"}
    assert len(matches) == NUM_COPIES
    assert all("copy" in name for name in matches)
