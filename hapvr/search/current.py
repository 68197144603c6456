"""Which index answers searches: search/current.json of the data root, written whole.

search/<digest of the network>/descriptors/<shard>/    descriptors of a shard
search/<digest of the network>/blank.safetensors       descriptors of pictures of one colour
search/<digest of the network>/index-<number>/         an index, see `hapvr.search.index`
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError
from hapvr.model.description import read_description, weights_sha256
from hapvr.search.index import FrameIndex, read_record
from hapvr.search.settings import SearchSettings
from hapvr.search.vectors import REBUILD

if TYPE_CHECKING:
    from hapvr.model.family import VideoNetwork

FOLDER = "search"
CURRENT = f"{FOLDER}/current.json"
BLANK_FILE = "blank.safetensors"
DIGITS = 16
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class CurrentIndex:
    """The index that answers searches.

    place: of the index, below the data root. model: where its model is, `models:/NAME/VERSION`, a folder or a file;
    digest: of that model's network. recall: at its last check, in [0, 1]. since: ISO 8601, UTC, when it began to answer.
    made: places of all indexes that were made and may still be there, the last one that answered first; nothing else is ever
    removed.
    """

    place: str
    model: str
    digest: str
    recall: float
    since: str
    made: tuple[str, ...] = ()

    def open(self, root: DataRoot, settings: SearchSettings) -> FrameIndex:
        """Raises DataError and DamagedError as `FrameIndex.open` does."""
        return FrameIndex.open(root.url_of(self.place), settings=settings.index)


def model_place(digest: str) -> str:
    """The folder of everything that one network made, below the data root."""
    return f"{FOLDER}/{digest}"


def current_index(root: DataRoot) -> CurrentIndex:
    """Raises DataError where there is no index yet, DamagedError for a file that cannot be read."""
    return read_record(root, CURRENT, CurrentIndex)


def serving_index(root: DataRoot) -> CurrentIndex | None:
    """The index that answers searches; None where there is none yet, and for a damaged record, with a warning."""
    return _or_missing(lambda: current_index(root) if root.exists(CURRENT) else None, None)


def write_current(root: DataRoot, index: CurrentIndex) -> None:
    """Make an index the one that answers."""
    root.write_json(CURRENT, asdict(index))


def verify_index(root: DataRoot) -> list[str]:
    """What is wrong with the files of the index that answers: a sentence for each. Empty where there is no index.

    Every byte of the index is read. Raises DamagedError where its records cannot be read.
    """
    if not root.exists(CURRENT):
        return []
    current = current_index(root)
    read_blank(root, current.digest)
    return current.open(root, SearchSettings()).verify()


def read_blank(root: DataRoot, digest: str) -> npt.NDArray[np.float32]:
    """[B, D] descriptors of pictures of one colour by the network of this digest; [0, 0] where they are not known."""
    name = f"{model_place(digest)}/{BLANK_FILE}"
    if not root.exists(name):
        return np.zeros((0, 0), np.float32)
    with root.open(name) as file:
        data = file.read()
    with root.corruption_errors(name, hint=REBUILD):
        return np.asarray(load(data)[BLANK_FILE], np.float32)


def known_blank(root: DataRoot, digest: str) -> npt.NDArray[np.float32]:
    """As `read_blank`, for the step that makes the file again: a damaged one counts as missing, with a warning."""
    return _or_missing(lambda: read_blank(root, digest), np.zeros((0, 0), np.float32))


def _or_missing(read: Callable[[], Value], missing: Value) -> Value:
    try:
        return read()
    except DamagedError as error:
        warnings.warn(f"{error}. It counts as missing", stacklevel=3)
        return missing


def write_blank(root: DataRoot, digest: str, blank: npt.NDArray[np.float32]) -> None:
    """Keep what `read_blank` reads."""
    with root.write(f"{model_place(digest)}/{BLANK_FILE}") as stream:
        stream.write(save({BLANK_FILE: np.ascontiguousarray(blank)}))


def network_digest(network: VideoNetwork) -> str:
    """16 hex digits of everything that decides the scores of a network; equal for networks that score alike."""
    from hapvr.networks.weights import state_sha256

    return _digest(network.scoring_settings(), state_sha256(network.state_dict()))


def stored_network_digest(folder: Path) -> str:
    """`network_digest` of the network in a folder of `save_network`, without torch. Raises DataError for a damaged one."""
    return _digest(read_description(folder).scoring_settings(), weights_sha256(folder))


def _digest(settings: Mapping[str, Any], weights: str) -> str:
    return hashlib.sha256(json.dumps([settings, weights], sort_keys=True).encode()).hexdigest()[:DIGITS]
