"""The index in an object store: built, updated and searched there."""

from collections.abc import Iterator
from typing import Any

import pytest

from hapvr.errors import DataError
from hapvr.search import lance_index
from hapvr.search.lance_index import LanceIndex
from hapvr.search.memory_index import MemoryIndex
from hapvr.seeding import numpy_rng
from hapvr.settings import IndexSettings
from tests.search.exact import DIMS, SMALL, ExactIndex, agree, descriptors, unit
from tests.steps.object_store import empty_bucket

pytestmark = pytest.mark.slow
QUERIES = unit(numpy_rng(7, "queries").standard_normal((3, DIMS)))


@pytest.fixture
def bucket() -> Iterator[str]:
    with empty_bucket() as url:
        yield f"{url}/index"


def filled(url: str, settings: IndexSettings) -> tuple[LanceIndex, ExactIndex]:
    """An index of 800 frames in two shards, and the exact one."""
    index = LanceIndex.create(url, DIMS, {"model": "a"}, settings)
    exact = ExactIndex()
    for number, shard in enumerate(("a", "b")):
        rows = descriptors([f"{shard}/{video}.mp4" for video in range(50)], seed=number)
        index.replace_shard(shard, rows, digest=shard)
        exact.replace_shard(shard, rows)

    index.optimise()
    return index, exact


def change(index: LanceIndex, exact: ExactIndex) -> None:
    """A shard comes, one is made again, one goes."""
    for number, shard in ((2, "c"), (3, "a")):
        rows = descriptors([f"{shard}/{video}.mp4" for video in range(50)], seed=number)
        index.replace_shard(shard, rows)
        exact.replace_shard(shard, rows)

    index.delete_shard("b")
    exact.delete_shard("b")
    index.optimise()


def check(index: LanceIndex, exact: ExactIndex) -> None:
    agree(index.search_frames(QUERIES, 10), exact.search_frames(QUERIES, 10))
    assert index.recall(probes=50) == 1
    assert index.verify() == []


def test_writers_without_a_common_lock_are_told_apart(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that finds the tables changed between two of its steps is refused, and what it left
    is not seen."""
    index, exact = filled(bucket, SMALL)
    rows = descriptors(["x/0.mp4"], seed=9)
    other_index = LanceIndex(bucket, SMALL)
    append = lance_index.append

    def after_the_other(*given: Any) -> Any:
        """The other writer does all its work between two steps of the first."""
        monkeypatch.setattr(lance_index, "append", append)
        other_index.replace_shard("x", rows)
        exact.replace_shard("x", rows)
        return append(*given)

    monkeypatch.setattr(lance_index, "append", after_the_other)
    with pytest.raises(DataError, match="another process changed"):
        index.replace_shard("y", descriptors(["y/0.mp4"], seed=10))
    check(LanceIndex(bucket, SMALL), exact)
    index.replace_shard("y", descriptors(["y/0.mp4"], seed=10))
    exact.replace_shard("y", descriptors(["y/0.mp4"], seed=10))
    check(index, exact)
    change(index, exact)
    check(LanceIndex(bucket, SMALL), exact)


def test_an_index_in_memory_wants_a_local_disk(bucket: str) -> None:
    with pytest.raises(DataError, match="must be on a local disk"):
        MemoryIndex.create(bucket, DIMS, {}, SMALL)
