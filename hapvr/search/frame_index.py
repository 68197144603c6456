"""What an index of a collection's frames can do, whatever stores it, and what each of them records.

<folder>/index.json    version of what is stored, digests of its files, and the shards; written last

Whoever opens an index sees what one index.json names, so a change is seen whole or not at all, and
what a killed writer left is overwritten by the next.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from hapvr.data.filesystem import DataRoot
from hapvr.errors import DataError
from hapvr.search.hashes import IndexedFrames
from hapvr.settings import IndexSettings

STATE_FILE = "index.json"
VECTOR = "vector"
SHARD = pa.field("shard", pa.string(), nullable=False)
HASH = pa.field("hash", pa.uint64(), nullable=False)

MIN_RECALL = 0.9
"""Part of their exact nearest neighbours that must be found; an index below does not serve."""
REBUILD = "`hapvr index build` rebuilds it"

Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class IndexState:
    """What index.json holds."""

    revision: Annotated[int, Field(ge=0, lt=2**63)]
    """number of changes so far"""
    dims: Annotated[int, Field(ge=1, lt=2**31)]
    """of the descriptors"""
    provenance: dict[str, Any]
    """what the descriptors were made with"""
    version: Annotated[int, Field(ge=1, lt=2**63)]
    """of the stored frames"""
    shards: dict[str, str]
    """name -> digest of the descriptors taken in"""
    files: dict[str, str]
    """path of each file that the frames are read from -> SHA-256"""


@dataclass(frozen=True)
class IndexStatus:
    """What an index holds."""

    revision: int
    """number of changes so far"""
    dims: int
    """of the descriptors"""
    videos: int
    frames: int
    unindexed_frames: int
    """are found too, but compared one by one"""
    parts: int
    """of the index over frames; 0 where every frame is compared"""
    fragments: int
    """files of rows that each search opens"""
    shards: dict[str, str]
    """name -> digest of what is indexed of it"""
    digest: str
    """SHA-256 of what is indexed, the model and all shards"""


class FrameSearch(Protocol):
    """Frames that are found by their vectors. Any thread may search them."""

    def search_frames(self, queries: npt.NDArray[np.floating], k: int) -> pa.Table:
        """The k nearest frames of each query frame, nearest first.

        queries: [Q, dims], finite, none of them zero.

        Returns FOUND_FRAMES, query_frame from 0, similarity a cosine in [-1, 1]; fewer than k rows
        a query where there are fewer frames.
        """
        ...

    def frames(self) -> IndexedFrames:
        """Times and hashes of all frames, read once, so that an index can be searched on when it
        was replaced and its files are gone."""
        ...


@runtime_checkable
class FrameIndex(FrameSearch, Protocol):
    """An index that is stored, as it was when it was opened. What changes it opens it anew."""

    def videos(self) -> Mapping[str, str]:
        """Video id -> shard of every video."""
        ...

    def shard_digests(self) -> dict[str, str]:
        """Shard -> digest of what is indexed of it."""
        ...

    def status(self) -> IndexStatus:
        """What the index holds."""
        ...

    def replace_shard(self, shard: str, frames: pa.Table, *, digest: str = "") -> None:
        """Take in the descriptors of a shard, in place of those it had.

        frames: video_id, second, hash and vector of the frames that can be found; vectors are
            fixed-size lists of `dims` floats, of any length but 0
        digest: what `status` tells of the shard
        """
        ...

    def delete_shard(self, shard: str) -> None:
        """Forget a shard; nothing happens where there is none of this name."""
        ...

    def forget(self, video_ids: Sequence[str], renamed: Mapping[str, str]) -> None:
        """Remove videos, and every file that has their vectors: searches that have an earlier
        version open may fail.

        renamed: digest of a shard's descriptors -> that of those without the videos
        """
        ...

    def optimise(self, *, rebuild: bool = False) -> None:
        """Make searches as fast as they can be after changes, and remove what is no longer read.

        rebuild: from the first row on, whatever was done before
        """
        ...

    def recall(self, *, probes: int = 200) -> float:
        """What part of their ten exact nearest neighbours stored vectors find, in [0, 1]; 1 where
        there are none.

        probes: how many, drawn at random

        Raises: DamagedError where the index cannot be read.
        """
        ...

    def verify(
        self, passed: set[str] | None = None, *, until: Callable[[], bool] = lambda: False
    ) -> list[str]:
        """What is wrong with the files of the index: a sentence for each that is missing or holds
        other bytes.

        passed: digests of files that need not be read again; those of this call are added
        until: true ends the call
        """
        ...


class StoredIndex(FrameIndex, Protocol):
    """A kind of index, as a class."""

    def __init__(self, folder: str | Path, settings: IndexSettings) -> None:
        """Open an index.

        Raises: DataError where there is none, DamagedError for one that cannot be read or whose
        files are not what was written.
        """

    @staticmethod
    def create(
        folder: str | Path, dims: int, provenance: dict[str, Any], settings: IndexSettings
    ) -> FrameIndex:
        """An index without videos; replaces any other.

        provenance: of descriptors

        Raises: DataError if it cannot be written.
        """

    @staticmethod
    def has_written(state: IndexState) -> bool:
        """Whether the state of an index is of one of this kind."""


def vectors_of(rows: pa.Table) -> npt.NDArray[np.floating]:
    """[N, dims], the vectors of a table."""
    column = rows[VECTOR].combine_chunks()
    values = np.asarray(column.flatten().to_numpy(zero_copy_only=False))
    return values.reshape(len(rows), column.type.list_size)


def read_record(root: DataRoot, name: str, kind: type[Record]) -> Record:
    """The dataclass that a JSON file of search holds.

    Raises: DataError where there is none, DamagedError for another value.
    """
    if not root.exists(name):
        raise DataError(
            f"search: there is no index below {root.url}; `hapvr index build` makes one"
        )
    return root.read_json_as(name, kind, hint=REBUILD)


def read_state(root: DataRoot) -> IndexState:
    """What index.json of an index's folder holds. Raises as `read_record` does."""
    return read_record(root, STATE_FILE, IndexState)
