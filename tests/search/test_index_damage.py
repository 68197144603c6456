"""Wrong rows and queries, damaged files and full disks are named, and change nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hapvr.errors import ArgumentError, DamagedError, DataError
from hapvr.search.index import FrameIndex
from hapvr.search.vectors import VECTOR
from tests.search.exact import DIMS, SMALL, ExactIndex, agree, descriptors, vector_column, vectors_of
from tests.stages.data_projects import small_disk


@pytest.mark.parametrize(
    ("queries", "said"),
    [
        (np.ones((2, DIMS + 1)), "wanted \\[queries, 20\\]"),
        (np.ones(DIMS), "wanted \\[queries, 20\\]"),
        (np.full((1, DIMS), np.nan), "not finite"),
    ],
)
def test_wrong_queries_are_refused(
    filled: tuple[Path, ExactIndex], queries: npt.NDArray[np.floating], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        FrameIndex.open(filled[0]).search_frames(queries, 3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.drop_columns(["video_id"]), "wanted"),
        (lambda table: table.set_column(2, VECTOR, vector_column(np.ones((len(table), 3)))), "lists of 20 floats"),
        (lambda table: table.set_column(2, VECTOR, vector_column(np.zeros((len(table), DIMS)))), "zero or not finite"),
        (lambda table: table.set_column(2, VECTOR, vector_column(np.full((len(table), DIMS), np.inf))), "not finite"),
    ],
)
def test_wrong_rows_are_refused_and_change_nothing(copy: tuple[Path, ExactIndex], change: Any, said: str) -> None:
    index = FrameIndex.open(copy[0], settings=SMALL)
    before = index.status()
    frames, videos, _ = descriptors(["a/1.mp4"], seed=1)
    with pytest.raises(ArgumentError, match=said):
        index.replace_shard("a", change(frames), videos)
    assert FrameIndex.open(copy[0], settings=SMALL).status() == before


def test_there_is_no_index_yet(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="hapvr index build"):
        FrameIndex.open(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("kind", ["manifest", "rows", "codes", "state", "cut state", "format"])
def test_damage_is_named(copy: tuple[Path, ExactIndex], kind: str) -> None:
    """What is gone or cut gives an error that names the place and the remedy, not a wrong answer or a crash."""
    folder, exact = copy
    frames = folder / "frames.lance"
    patterns = {"manifest": "_versions/*", "rows": "data/*", "codes": "_indices/*/*"}
    if kind in patterns:
        for path in frames.glob(patterns[kind]):
            path.write_bytes(path.read_bytes()[:40])
    elif kind == "state":
        (folder / "index.json").write_text("[]")
    elif kind == "cut state":
        (folder / "index.json").write_text('{"a"')
    else:
        (folder / "index.json").write_text('{"format_version": 99}')
    with pytest.raises((DamagedError, DataError)) as caught:
        FrameIndex.open(folder, settings=SMALL).search_frames(vectors_of(exact.shards["a"][0])[:2], 5)
    assert "hapvr index build" in str(caught.value) or kind in ("state", "cut state")


@pytest.mark.parametrize("value", [None, [[1]], "x", -1, math.nan, 10**30, {"frames": "x", "videos": 1}], ids=str)
@pytest.mark.parametrize("name", ["revision", "dims", "versions", "shards", "replaced"])
def test_a_wrong_value_of_the_state_is_named(tmp_path: Path, name: str, value: object) -> None:
    """One sentence, whatever somebody wrote there."""
    FrameIndex.create(tmp_path, DIMS, {}, settings=SMALL)
    place = tmp_path / "index.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {name: value}))
    with pytest.raises(DamagedError, match=r"index\.json below .* is damaged \(.*hapvr index build"):
        FrameIndex.open(tmp_path, settings=SMALL)


def test_a_full_disk_is_named_and_changes_nothing(copy: tuple[Path, ExactIndex]) -> None:
    """A shard and a build that do not fit are refused with what to do; the index answers as before, and takes them later."""
    folder, exact = copy
    index = FrameIndex.open(folder, settings=SMALL)
    rows = descriptors([f"d/{video}.mp4" for video in range(200)], seed=5)
    with small_disk(5000), pytest.raises(DataError, match="Free space"):
        index.replace_shard("d", *rows)
    with small_disk(5000), pytest.raises(DataError, match="Free space"):
        index.optimise(anew=True)
    queries = vectors_of(exact.shards["a"][0])[:3]
    for found in (index, FrameIndex.open(folder, settings=SMALL)):
        agree(found.search_frames(queries, 5), exact.search_frames(queries, 5))
    index.replace_shard("d", *rows)
    exact.replace_shard("d", *rows)
    index.optimise(anew=True)
    agree(index.search_frames(queries, 5), exact.search_frames(queries, 5))
