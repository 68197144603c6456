"""Which index answers searches: search/current.json of the data root, written whole.

search/<digest of the network>/descriptors/<shard>/    descriptors of a shard
search/<digest of the network>/blank.safetensors       descriptors of pictures of one colour
search/<digest of the network>/index-<number>/         an index, see `hapvr.search.index`
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from hapvr.errors import DamagedError, DataError
from hapvr.search.index import FrameIndex
from hapvr.search.settings import SearchSettings
from hapvr.storage.filesystem import DataRoot

FOLDER = "search"
CURRENT = f"{FOLDER}/current.json"
BLANK_FILE = "blank.safetensors"
REMEDY = "`hapvr index build` makes it anew"


@dataclass(frozen=True, kw_only=True)
class CurrentIndex:
    """The index that answers searches.

    place: of the index, below the data root. model: where its model is, `models:/NAME/VERSION`, a folder or a file;
    digest: of that model's network. recall: at its last check, in [0, 1]. since: ISO 8601, UTC, when it began to answer.
    earlier: digests of the models whose indexes are kept for a rollback, the last one first.
    """

    place: str
    model: str
    digest: str
    recall: float
    since: str
    earlier: tuple[str, ...] = ()

    def open(self, root: DataRoot, settings: SearchSettings) -> FrameIndex:
        """Raises DataError and DamagedError as `FrameIndex.open` does."""
        return FrameIndex.open(root.url_of(self.place), settings=settings.index)

    def blank(self, root: DataRoot) -> npt.NDArray[np.float32]:
        """[B, D] descriptors of pictures of one colour, by its model; none where they are not known."""
        return read_blank(root, self.digest)


def model_place(digest: str) -> str:
    """The folder of everything that one network made, below the data root."""
    return f"{FOLDER}/{digest}"


def current_index(root: DataRoot) -> CurrentIndex:
    """Raises DataError where there is no index yet, DamagedError for a file that cannot be read."""
    if not root.exists(CURRENT):
        raise DataError(f"search: there is no index below {root.url}; `hapvr index build` makes one")
    try:
        stored: dict[str, Any] = root.read_json(CURRENT)
    except DamagedError as error:
        raise DamagedError(f"{error}: {REMEDY}") from error
    texts = [stored.get(name) for name in ("place", "model", "digest", "since")]
    earlier = stored.get("earlier", [])
    try:
        if not isinstance(earlier, list) or not all(isinstance(text, str) for text in [*texts, *earlier]):
            raise TypeError("a value is no text")
        return CurrentIndex(**{**stored, "recall": float(stored["recall"]), "earlier": tuple(earlier)})
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"search: {CURRENT} below {root.url} is damaged ({error}); {REMEDY}") from error


def serving_index(root: DataRoot) -> CurrentIndex | None:
    """The index that answers searches; None where there is none yet, and for a damaged record, with a warning."""
    if not root.exists(CURRENT):
        return None
    try:
        return current_index(root)
    except DamagedError as error:
        warnings.warn(f"{error}. It counts as missing", stacklevel=2)
        return None


def write_current(root: DataRoot, index: CurrentIndex) -> None:
    """Make an index the one that answers."""
    root.write_json(CURRENT, asdict(index))


def read_blank(root: DataRoot, digest: str) -> npt.NDArray[np.float32]:
    """[B, D] descriptors of pictures of one colour by the network of this digest; [0, 0] where they are not known."""
    name = f"{model_place(digest)}/{BLANK_FILE}"
    if not root.exists(name):
        return np.zeros((0, 0), np.float32)
    with root.open(name) as file:
        data = file.read()
    with root.naming_damage(name, remedy=REMEDY):
        return np.asarray(load(data)[BLANK_FILE], np.float32)


def known_blank(root: DataRoot, digest: str) -> npt.NDArray[np.float32]:
    """As `read_blank`, for the stage that makes the file again: a damaged one counts as missing, with a warning."""
    try:
        return read_blank(root, digest)
    except DamagedError as error:
        warnings.warn(f"{error}. It counts as missing", stacklevel=2)
        return np.zeros((0, 0), np.float32)


def write_blank(root: DataRoot, digest: str, blank: npt.NDArray[np.float32]) -> None:
    """Keep what `read_blank` reads."""
    with root.write(f"{model_place(digest)}/{BLANK_FILE}") as stream:
        stream.write(save({BLANK_FILE: np.ascontiguousarray(blank)}))
