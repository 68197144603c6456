"""Which index answers searches, and where indexes are.

search/current.json                                    which index that is, written whole
search/<digest of the network>/descriptors/<shard>/    descriptors of a shard
search/<digest of the network>/blank.safetensors       see `hapvr.search.blank_file`
search/<digest of the network>/index-<number>/         an index, see `hapvr.search.frame_index`
"""

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, TypeVar

from pydantic import Field

from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError
from hapvr.search.frame_index import STATE_FILE, FrameIndex, read_record, read_state
from hapvr.search.indexes import open_index
from hapvr.settings import SearchSettings

SEARCH_FOLDER = "search"
CURRENT = f"{SEARCH_FOLDER}/current.json"
IndexPlace = Annotated[str, Field(pattern=r"^search/[0-9a-f]{16}/index-\d{4,}$")]
"""A folder below the data root, and nothing else, since old ones are removed."""
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class CurrentIndex:
    """The index that answers searches."""

    place: IndexPlace
    """of the index, below the data root"""
    model: str
    """where its model is: `models:/NAME/VERSION`, or a folder or file, by its place below the data
    root if it is there"""
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """of the model's network"""
    recall: float
    """at the last check, in [0, 1]"""
    since: str
    """ISO 8601, UTC, when it began to answer"""
    made: tuple[IndexPlace, ...] = ()
    """places of all indexes that were made and may still be there, the last one that answered
    first; nothing else is ever removed"""

    def open(self, root: DataRoot, settings: SearchSettings) -> FrameIndex:
        """Open the index. Raises DataError and DamagedError as `open_index` does."""
        return open_index(root.url_of(self.place), settings.index)

    def shards(self, root: DataRoot) -> dict[str, str]:
        """Shard -> digest of what the index holds of it. Raises as `open` does."""
        return read_state(DataRoot(root.url_of(self.place))).shards


def model_place(digest: str) -> str:
    """The folder of everything that one network made, below the data root."""
    return f"{SEARCH_FOLDER}/{digest}"


def current_index(root: DataRoot) -> CurrentIndex:
    """The index that answers searches. Raises DataError if there is none yet, DamagedError for a
    record that cannot be read."""
    return read_record(root, CURRENT, CurrentIndex)


def index_places(root: DataRoot) -> list[str]:
    """The folders, below the root, of all indexes that were begun, whether or not they answer."""
    places = []
    for digest in root.list_folders(SEARCH_FOLDER):
        above = model_place(digest)
        places += [f"{above}/{name}" for name in root.list_folders(above)]

    return [place for place in places if root.exists(f"{place}/{STATE_FILE}")]


def serving_index(root: DataRoot) -> CurrentIndex | None:
    """The index that answers searches; None where there is none yet, and for a damaged record, with
    a warning."""
    return or_missing(lambda: current_index(root) if root.exists(CURRENT) else None, None)


def write_current(root: DataRoot, index: CurrentIndex) -> None:
    """Make an index the one that answers."""
    root.write_json(CURRENT, asdict(index))


def or_missing(read: Callable[[], Value], missing: Value) -> Value:
    """The result of `read`; `missing` for a damaged file, with a warning."""
    try:
        return read()
    except DamagedError as error:
        warnings.warn(f"{error}. It counts as missing")
        return missing
