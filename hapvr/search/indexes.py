"""The kinds of indexes: which there are, and how one is made or opened."""

from pathlib import Path
from typing import Any

from hapvr.data.filesystem import DataRoot
from hapvr.search.frame_index import FrameIndex, StoredIndex, read_state
from hapvr.search.lance_index import LanceIndex
from hapvr.search.memory_index import MemoryIndex
from hapvr.settings import IndexKind, IndexSettings

KINDS: dict[IndexKind, type[StoredIndex]] = {
    "lance": LanceIndex,
    "memory": MemoryIndex,
}


def create_index(
    folder: str | Path, dims: int, provenance: dict[str, Any], settings: IndexSettings
) -> FrameIndex:
    """An index without videos, of the kind that the settings name; replaces any other.

    dims: of descriptors
    provenance: what they are made with

    Raises: DataError if it cannot be written.
    """
    return KINDS[settings.kind].create(folder, dims, provenance, settings)


def open_index(folder: str | Path, settings: IndexSettings) -> FrameIndex:
    """An index of any kind, whatever the settings name.

    Raises: DataError where there is no index, DamagedError for one that cannot be read or whose
    files are not what was written.
    """
    state = read_state(DataRoot(folder))
    for kind in KINDS.values():
        if kind.has_written(state):
            return kind(folder, settings)

    return LanceIndex(folder, settings)  # which says what is wrong with it
