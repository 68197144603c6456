"""Which index answers searches, and the videos that it finds: their shards, stored features, and
what their files say.

search/current.json                                    which index that is, written whole
search/<digest of the network>/descriptors/<shard>/    descriptors of a shard
search/<digest of the network>/blank.safetensors       descriptors of pictures of one colour
search/<digest of the network>/index-<number>/         an index, see `hapvr.search.frame_index`
"""

import hashlib
import math
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from safetensors.numpy import load, save

from hapvr.data.features import IMPORTED, STAGE, FeatureFile
from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import STAGE as FRAMES_STAGE
from hapvr.data.manifest import VIDEOS_STAGE
from hapvr.data.shards import STATUS_OK, Shard
from hapvr.errors import DamagedError, DataError
from hapvr.scorer.segments import FrameTimes
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.frame_index import REBUILD, FrameIndex, read_record, read_state
from hapvr.search.indexes import open_index
from hapvr.settings import SearchSettings
from hapvr.video.sources import path_of_text, text_of_path

FOLDER = "search"
CURRENT = f"{FOLDER}/current.json"
BLANK_FILE = "blank.safetensors"
REFRESH_S = 5.0
"""How long what is stored is taken to be unchanged."""
MAX_OPEN_SHARDS = 256
"""A process may open about a thousand files."""
MAX_KEPT_TIMES = 1000
"""Videos whose times are in memory, 30 kB each of an hour."""

IndexPlace = Annotated[str, Field(pattern=r"^search/[0-9a-f]{16}/index-\d{4,}$")]
"""Below the data root; old ones are removed, so it is nothing else."""

CHANGED = (
    "search: the frames of {} are others than those that were described; run `hapvr "
    "index add` or the chain again"
)

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class CurrentIndex:
    """The index that answers searches."""

    place: IndexPlace
    """of the index, below the data root"""
    model: str
    """where its model is, `models:/NAME/VERSION`, a folder or a file"""
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
        """Raises DataError and DamagedError as `open_index` does."""
        return open_index(root.url_of(self.place), settings.index)

    def shards(self, root: DataRoot) -> dict[str, str]:
        """Shard -> digest of what the index holds of it. Raises as `open` does."""
        return read_state(DataRoot(root.url_of(self.place))).shards


def model_place(digest: str) -> str:
    """The folder of everything that one network made, below the data root."""
    return f"{FOLDER}/{digest}"


def current_index(root: DataRoot) -> CurrentIndex:
    """Raises DataError where there is no index yet, DamagedError for a file that cannot be read."""
    return read_record(root, CURRENT, CurrentIndex)


def serving_index(root: DataRoot) -> CurrentIndex | None:
    """The index that answers searches; None where there is none yet, and for a damaged record, with
    a warning."""
    return _or_missing(lambda: current_index(root) if root.exists(CURRENT) else None, None)


def write_current(root: DataRoot, index: CurrentIndex) -> None:
    """Make an index the one that answers."""
    root.write_json(CURRENT, asdict(index))


def read_blank(root: DataRoot, digest: str) -> npt.NDArray[np.float32]:
    """[B, D] descriptors of pictures of one colour by the network of this digest; [0, 0] where the
    descriptors were made without. Raises DamagedError where they were made with them, and the file
    is gone."""
    blank = _stored_blank(root, digest)[0]
    if not blank.size and (shard := _described_with_blank(root, digest)):
        name = f"{model_place(digest)}/{BLANK_FILE}"
        raise DamagedError(
            f"search: {root.url_of(name)} is missing, and {shard} was made with it; {REBUILD}"
        )
    return blank


def _described_with_blank(root: DataRoot, digest: str) -> str:
    """The place of a shard of descriptors that was made with pictures of one colour; "" if none
    was."""
    stage = f"{model_place(digest)}/descriptors"
    for key in root.list_folders(stage):
        with suppress(DataError):  # one that is unfinished or damaged tells nothing
            if Shard(root, stage, key).read().provenance.settings.get("blank"):
                return f"{stage}/{key}"
    return ""


def known_blank(root: DataRoot, digest: str, made_with: str) -> npt.NDArray[np.float32]:
    """As `read_blank`, for the step that makes the file again: one that is damaged, with a warning,
    or of features with other settings, see `write_blank`, counts as missing."""
    missing = np.zeros((0, 0), np.float32)
    blank, made = _or_missing(lambda: _stored_blank(root, digest), (missing, ""))
    return blank if made == made_with else missing


def _stored_blank(root: DataRoot, digest: str) -> tuple[npt.NDArray[np.float32], str]:
    name = f"{model_place(digest)}/{BLANK_FILE}"
    if not root.exists(name):
        return np.zeros((0, 0), np.float32), ""
    with root.open(name) as file, root.corruption_errors(name, hint=REBUILD):
        stored = load(file.read())
        blank = np.asarray(stored[BLANK_FILE], np.float32)
        if hashlib.sha256(blank.tobytes()).digest() != stored["sha256"].tobytes():
            raise ValueError("its values are not those that were written")
        return blank, stored["made_with"].tobytes().decode()


def _or_missing(read: Callable[[], Value], missing: Value) -> Value:
    try:
        return read()
    except DamagedError as error:
        warnings.warn(f"{error}. It counts as missing")
        return missing


def write_blank(
    root: DataRoot, digest: str, made_with: str, blank: npt.NDArray[np.float32]
) -> None:
    """Keep what `read_blank` reads. made_with: a digest of the settings of the features, which the
    network's does not tell."""
    values = {"sha256": hashlib.sha256(blank.tobytes()).digest(), "made_with": made_with.encode()}
    stored = {name: np.frombuffer(value, np.uint8) for name, value in values.items()}
    with root.write(f"{model_place(digest)}/{BLANK_FILE}") as stream:
        stream.write(save({BLANK_FILE: np.ascontiguousarray(blank), **stored}))


@dataclass(frozen=True, kw_only=True)
class VideoMetadata:
    """path: of the file, None where only features are known. sha256: of the bytes that were
    sampled; of the id where there is no file. num_bytes, duration_s, width_px, height_px, codec: as
    the file says; None or 0 where it does not. content: shares of width and height that black bars
    leave. noise, mean_picture: see `hapvr.video.frames`. missing, clock_note: see `FrameTimes`.
    """

    path: Path | None
    sha256: str
    num_bytes: int = 0
    duration_s: float | None = None
    width_px: int = 0
    height_px: int = 0
    codec: str = ""
    content: tuple[float, float] = (1.0, 1.0)
    noise: float = 0.0
    mean_picture: bytes = b""
    missing: str = ""
    clock_note: str = ""

    @property
    def path_text(self) -> str | None:
        """The path as tables have it."""
        return None if self.path is None else text_of_path(self.path)

    @property
    def content_px(self) -> tuple[int, int]:
        """Width and height without black bars."""
        return round(self.width_px * self.content[0]), round(self.height_px * self.content[1])


class CollectionMetadata:
    """Metadata by video id, from the steps that looked at the video's file; read again where these
    change, as files do whose pictures, and so whose place in the index, stay the same. Any thread
    may ask."""

    def __init__(self, root: DataRoot, shards: Mapping[str, str]) -> None:
        """shards: video id -> shard."""
        self._root, self._shards = root, shards
        self._known: dict[str, tuple[float, list[int], dict[str, dict[str, Any]]]] = {}

    def _rows(self, key: str) -> dict[str, dict[str, Any]]:
        videos, frames, features = (
            Shard(self._root, name, key) for name in (VIDEOS_STAGE, FRAMES_STAGE, STAGE)
        )
        looked_s, before, rows = self._known.get(key, (-math.inf, [], {}))
        if (now_s := time.monotonic()) - looked_s < REFRESH_S:
            return rows
        if (
            written := self._root.modified_ns(
                *(one.index_name for one in (videos, frames, features))
            )
        ) != before:
            imported = (
                not written[0] and IMPORTED in features.require({}).settings
            )  # these have no files
            rows = {
                row["video_id"]: row
                for row in ([] if imported else videos.rows())
                if row["status"] == STATUS_OK
            }
            sampled = {row["video_id"]: row for row in frames.rows()} if written[1] else {}
            described = {row["video_id"]: row for row in features.rows()} if written[2] else {}
            for name in rows.keys() & sampled.keys():
                file, pictures = (sampled[name][kind] for kind in ("file_sha256", "frames_sha256"))
                found = (
                    rows[name]["sha256"],
                    described.get(name, {}).get("frames_sha256", pictures),
                )
                kind = "missing" if sampled[name].get("is_partial") else "clock_note"
                read = {"sha256": file, kind: sampled[name]["message"]}
                rows[name] |= read | {"changed": found != (file, pictures)}
        self._known[key] = (now_s, written, rows)
        return rows

    def contents(self, key: str) -> dict[str, str]:
        """Video id -> SHA-256 of all videos of a shard that can be used; none of a shard that
        cannot be read."""
        with suppress(DataError):
            return {name: row["sha256"] for name, row in self._rows(key).items()}
        return {}

    def has_changed(self, video_id: str) -> bool:
        """Whether what is known of a video's file, its frames and its features is not of the same
        content."""
        return bool(self._rows(self._shards[video_id]).get(video_id, {}).get("changed"))

    def of(self, video_id: str) -> VideoMetadata:
        """Metadata of a video; those of an id that no shard describes have no path, and the digest
        of the id. Raises as `Shard.read` does."""
        row = self._rows(self._shards[video_id]).get(video_id) if video_id in self._shards else None
        if row is None:
            return VideoMetadata(
                path=None, sha256=hashlib.sha256(f"id:{video_id}".encode()).hexdigest()
            )
        measures = ("num_bytes", "duration_s", "width_px", "height_px", "codec")
        names = (*measures, "missing", "clock_note")
        known = {name: row[name] for name in names if row.get(name) is not None}
        return VideoMetadata(path=path_of_text(row["path"]), sha256=row["sha256"], **known)


class SearchableCollection:
    """Features by video id: any part of any video, from as few bytes as that takes. Any thread may
    read."""

    def __init__(
        self,
        root: DataRoot,
        shards: Mapping[str, str],
        *,
        require: Callable[[Mapping[str, Any]], None],
        extras: bool = False,
    ) -> None:
        """shards: video id -> shard. require: raises DataError for settings of features that the
        model does not take. extras: the network reads pooled vectors, which the regions then carry.
        """
        self.shard_of = shards
        self.metadata = CollectionMetadata(root, shards)
        self._guard = threading.Lock()

        @lru_cache(MAX_OPEN_SHARDS)
        def opened(key: str) -> FeatureFile:
            shard = Shard(root, STAGE, key)
            require(shard.require({}).settings)
            return FeatureFile(shard, extras=extras)

        # no function refers to the collection: files close when it is dropped, not when a cycle is
        # found
        self._opened = opened
        self._times = lru_cache(MAX_KEPT_TIMES)(
            lambda video_id: tuple(opened(shards[video_id]).times(video_id))
        )
        made = (Shard(root, STAGE, key).provenance() for key in self.shards())
        if (first := next((found for found in made if found is not None), None)) is not None:
            require(first.settings)  # it stands for all until they are read

    def video_ids(self, key: str | None = None) -> list[str]:
        """All videos that can be found, sorted; with `key`, those of one shard."""
        return sorted(video_id for video_id, shard in self.shard_of.items() if key in (None, shard))

    def shards(self) -> list[str]:
        """Shards that have a video, sorted."""
        return sorted(set(self.shard_of.values()))

    def times(self, video_id: str) -> Sequence[float]:
        """Seconds [T] of the sampled frames. Raises DataError for a video that has no features any
        more."""
        with self._guard:
            self._file(video_id)
            return self._times(video_id)

    def read(
        self, video_id: str, times_s: Sequence[float], first: int, last: int
    ) -> SampledFeatures:
        """The frames from `first` to `last` - 1. times_s: what `times` gave. Raises DataError as
        `times` does."""
        with self._guard:
            file = self._file(video_id)
            regions, hashes = (
                file.regions(video_id, first, last),
                file.hashes(video_id, first, last),
            )
        if self.metadata.has_changed(video_id):
            raise DataError(CHANGED.format(video_id))
        return SampledFeatures(regions, self.clock(video_id, times_s[first:last]), hashes)

    def clock(self, video_id: str, times_s: Sequence[float]) -> FrameTimes:
        """Seconds of the sampled frames, and when the video ends."""
        known = self.metadata.of(video_id)
        return FrameTimes(
            tuple(times_s), known.duration_s, missing=known.missing, clock_note=known.clock_note
        )

    def whole(self, video_id: str) -> SampledFeatures:
        """All frames of a video. Raises DataError as `times` does."""
        times = self.times(video_id)
        return self.read(video_id, times, 0, len(times))

    def _file(self, video_id: str) -> FeatureFile:
        if video_id not in self.shard_of:
            raise DataError(
                f"search: the index has no video {video_id!r:.200}; `hapvr index status` "
                "says what it has"
            )
        return self._opened(self.shard_of[video_id])
