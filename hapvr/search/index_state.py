"""index.json of an index: which versions of its tables belong together, which they replaced, and the shards they hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from hapvr.errors import DamagedError, DataError
from hapvr.settings import explain
from hapvr.storage.filesystem import DataRoot

STATE_FILE = "index.json"
FORMAT_VERSION = 1
Count = Annotated[int, Field(ge=0, lt=2**63)]
Version = Annotated[int, Field(ge=1, lt=2**63)]


@dataclass(frozen=True)
class IndexedShard:
    """digest: of the descriptors that were taken in; how many videos and frames they gave."""

    digest: str
    videos: Count
    frames: Count


@dataclass(frozen=True)
class TableVersions:
    """Versions of the tables that belong together. regions: None in an index of an earlier version of this package."""

    frames: Version
    videos: Version
    regions: Version | None = None


@dataclass(frozen=True)
class ReplacedVersions:
    """at_s: when they were replaced, in seconds since 1970, by a clock that may have been set since."""

    versions: TableVersions
    at_s: FiniteFloat


@dataclass(frozen=True, kw_only=True)
class IndexState:
    """revision: number of changes so far. dims: of the descriptors. provenance: what they were made with. shards: by name.

    replaced: versions that searches may still have open; indexes of earlier versions of this package name none.
    """

    revision: Count
    dims: Annotated[int, Field(ge=1, lt=2**31)]
    provenance: dict[str, Any]
    versions: TableVersions
    shards: dict[str, IndexedShard]
    replaced: tuple[ReplacedVersions, ...] = ()
    format_version: int = FORMAT_VERSION


STATE = TypeAdapter(IndexState)


def read_state(root: DataRoot) -> IndexState:
    """root: the folder of the index. Raises DataError where there is none or one of another format, DamagedError for a
    file or value that cannot be used."""
    if not root.exists(STATE_FILE):
        raise DataError(f"search: there is no index below {root.url}; `hapvr index build` makes one")
    stored = root.read_json(STATE_FILE)
    if stored.get("format_version") != FORMAT_VERSION:
        raise DataError(
            f"search: the index below {root.url} has format {stored.get('format_version')}, this version reads "
            f"{FORMAT_VERSION}; `hapvr index build` makes it anew"
        )
    try:
        return STATE.validate_python(stored)
    except ValidationError as error:
        raise DamagedError(
            f"search: {STATE_FILE} below {root.url} is damaged ({explain(error)}); `hapvr index build` makes it anew"
        ) from error


def write_state(root: DataRoot, state: IndexState) -> None:
    """Make this state that of the index in the folder `root`."""
    root.write_json(STATE_FILE, asdict(state))
