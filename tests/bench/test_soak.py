"""An index that shards come to one by one."""

from pathlib import Path

import pytest

from bench.soak import soak
from hapvr.search import lance_index, lance_upkeep


@pytest.mark.slow
def test_files_and_fragments_are_bounded_as_shards_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty shards with a search after each: what came last is found first, and old versions go.
    `bench.soak` has more."""
    monkeypatch.setattr(lance_index, "KEEP_S", 0.0)
    monkeypatch.setattr(lance_upkeep, "MAX_FRAGMENTS", 6)
    monkeypatch.setattr(lance_upkeep, "MAX_PARTS", 4)
    rows = list(soak(tmp_path, shards=20, videos=5, frames=30, keep_s=0.0))
    assert all(row["itself first"] for row in rows)
    assert rows[-1]["frames"] == 20 * 5 * 30
    assert max(row["fragments"] for row in rows) <= 6
    assert max(row["parts"] for row in rows) <= 4
    # the table with its fragments, parts, and files of the last two versions
    assert max(row["files"] for row in rows[10:]) <= max(row["files"] for row in rows[:10]) + 10
    assert rows[-1]["RSS MB"] < rows[9]["RSS MB"] + 200
