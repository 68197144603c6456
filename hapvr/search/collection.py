"""Which index answers searches, and the videos that it finds: their shards, stored features, and
what their files say.

search/current.json                                    which index that is, written whole
search/<digest of the network>/descriptors/<shard>/    descriptors of a shard
search/<digest of the network>/blank.safetensors       see `hapvr.search.blank_file`
search/<digest of the network>/index-<number>/         an index, see `hapvr.search.frame_index`
"""

import hashlib
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from hapvr.data.features import IMPORTED, STAGE, FeatureFile
from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import STAGE as FRAMES_STAGE
from hapvr.data.manifest import VIDEOS_STAGE
from hapvr.data.shards import STATUS_OK, Shard
from hapvr.errors import DamagedError, DataError
from hapvr.scorer.segments import FrameTimes
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.frame_index import STATE_FILE, FrameIndex, read_record, read_state
from hapvr.search.indexes import open_index
from hapvr.settings import SearchSettings
from hapvr.video.sources import path_of_text, text_of_path

FOLDER = "search"
CURRENT = f"{FOLDER}/current.json"
REFRESH_S = 5.0
"""How long stored data is assumed not to have changed."""
MAX_OPEN_SHARDS = 256
"""A process may open about a thousand files."""
MAX_KEPT_FRAMES = 1000
"""Videos whose times and hashes are in memory, 60 kB each of an hour."""

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


def index_places(root: DataRoot) -> list[str]:
    """All indexes that were begun, whether or not they answer, by their folders below the root."""
    places = []
    for digest in root.list_folders(FOLDER):
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
    """What `read` gives; `missing` for a damaged file, with a warning."""
    try:
        return read()
    except DamagedError as error:
        warnings.warn(f"{error}. It counts as missing")
        return missing


@dataclass(frozen=True, kw_only=True)
class VideoMetadata:
    """Facts about a video and its file."""

    path: Path | None
    """None where only features are known"""
    sha256: str
    """of the sampled bytes; of the id where there is no file"""
    num_bytes: int = 0
    """this and the next four: as the file says; None or 0 where it does not"""
    duration_s: float | None = None
    width_px: int = 0
    height_px: int = 0
    codec: str = ""
    content: tuple[float, float] = (1.0, 1.0)
    """shares of width and height that the film fills, without bars and blurred sides"""
    noise: float = 0.0
    """see `hapvr.video.frames`, as of `mean_picture`"""
    mean_picture: bytes = b""
    mean_colours: bytes = b""
    """see `hapvr.video.looks`, as of `still_s`"""
    still_s: float = 0.0
    missing: str = ""
    """see `FrameTimes`, as of `clock_note`"""
    clock_note: str = ""

    @property
    def path_text(self) -> str | None:
        """The path as tables have it."""
        return None if self.path is None else text_of_path(self.path)

    @property
    def content_px(self) -> tuple[int, int]:
        """Width and height of the film."""
        return round(self.width_px * self.content[0]), round(self.height_px * self.content[1])


Rows = dict[str, dict[str, Any]]
"""Values of videos, by id."""


@dataclass(frozen=True)
class _ShardRows:
    """What was read from a shard."""

    looked_s: float
    """when it was read, by the monotonic clock"""
    written_ns: list[int]
    """when the indexes of its steps were written"""
    rows: Rows
    described: dict[str, VideoMetadata] = field(default_factory=dict)
    """of the videos that were asked for"""


def _read_rows(root: DataRoot, key: str, written_ns: list[int]) -> Rows:
    """The videos of a shard that can be used, with what their frames say of them.

    written_ns: when the shard was written of videos, frames and features; 0 where it is not there
    """
    videos_ns, frames_ns, features_ns = written_ns
    features = Shard(root, STAGE, key)
    if not videos_ns and IMPORTED in features.require({}).settings:
        return {}  # these have no files
    videos = Shard(root, VIDEOS_STAGE, key)
    rows = {row["video_id"]: row for row in videos.rows() if row["status"] == STATUS_OK}
    frame_rows = Shard(root, FRAMES_STAGE, key).rows() if frames_ns else []
    feature_rows = features.rows() if features_ns else []
    described = {row["video_id"]: row for row in feature_rows}
    for frame_row in frame_rows:
        video_id = frame_row["video_id"]
        if video_id in rows:
            row = rows[video_id]
            rows[video_id] = row | _of_frames(row, frame_row, described.get(video_id, {}))

    return rows


def _of_frames(
    video: Mapping[str, Any], frames: Mapping[str, Any], features: Mapping[str, Any]
) -> dict[str, Any]:
    """What the rows of a video's frames and features add to that of its file."""
    pictures = frames["frames_sha256"]
    is_other_file = video["sha256"] != frames["file_sha256"]
    is_other_frames = features.get("frames_sha256", pictures) != pictures
    note = "missing" if frames.get("is_partial") else "clock_note"
    return {
        "sha256": frames["file_sha256"],
        note: frames["message"],
        "changed": is_other_file or is_other_frames,
    }


def _without_file(video_id: str) -> VideoMetadata:
    """The metadata of a video that no shard describes."""
    digest = hashlib.sha256(f"id:{video_id}".encode()).hexdigest()
    return VideoMetadata(path=None, sha256=digest)


def _of_row(row: Mapping[str, Any]) -> VideoMetadata:
    """Of a video as `_read_rows` gives it."""
    measures = ("num_bytes", "duration_s", "width_px", "height_px", "codec")
    names = (*measures, "missing", "clock_note")
    values = {name: row[name] for name in names if row.get(name) is not None}
    return VideoMetadata(path=path_of_text(row["path"]), sha256=row["sha256"], **values)


class CollectionMetadata:
    """Metadata by video id, from the steps that looked at the video's file; read again where these
    change, as files do whose pictures, and so whose place in the index, stay the same. Any thread
    may ask."""

    def __init__(self, root: DataRoot, shards: Mapping[str, str]) -> None:
        """shards: video id -> shard."""
        self._root = root
        self._shards = shards
        self._read: dict[str, _ShardRows] = {}

    def _shard(self, key: str) -> _ShardRows:
        """The rows of a shard, as they were at most REFRESH_S ago."""
        now_s = time.monotonic()
        last = self._read.get(key)
        if last is not None and now_s - last.looked_s < REFRESH_S:
            return last

        stages = (VIDEOS_STAGE, FRAMES_STAGE, STAGE)
        names = [Shard(self._root, stage, key).index_name for stage in stages]
        written_ns = self._root.modified_ns(*names)
        if last is not None and last.written_ns == written_ns:
            shard = replace(last, looked_s=now_s)
        else:
            shard = _ShardRows(now_s, written_ns, _read_rows(self._root, key, written_ns))

        self._read[key] = shard
        return shard

    def contents(self, key: str) -> dict[str, str]:
        """Video id -> SHA-256 of all videos of a shard that can be used; none of a shard that
        cannot be read."""
        with suppress(DataError):
            return {name: row["sha256"] for name, row in self._shard(key).rows.items()}
        return {}

    def has_changed(self, video_id: str) -> bool:
        """Whether a video's file, frames and features are records of different contents."""
        return bool(self._shard(self._shards[video_id]).rows.get(video_id, {}).get("changed"))

    def of(self, video_id: str) -> VideoMetadata:
        """Metadata of a video; those of an id that no shard describes have no path, and the digest
        of the id. Raises as `Shard.read` does."""
        if video_id not in self._shards:
            return _without_file(video_id)
        shard = self._shard(self._shards[video_id])
        if video_id not in shard.described:
            row = shard.rows.get(video_id)
            file = _without_file(video_id) if row is None else _of_row(row)
            shard.described[video_id] = file

        return shard.described[video_id]

    def clock_notes(self, video_ids: Iterable[str]) -> list[str]:
        """What is wrong with the clocks of videos, a sentence each: their seconds are not those of
        players. Raises as `of`."""
        notes = ((video_id, self.of(video_id).clock_note) for video_id in video_ids)
        return [f"{video_id}: {note}" for video_id, note in notes if note]


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
        """Open the collection; features are opened when they are read.

        shards: video id -> shard
        require: raises DataError for settings of features that the model does not take
        extras: the network reads pooled vectors, which the regions then carry
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
        self._frames = lru_cache(MAX_KEPT_FRAMES)(
            lambda video_id: opened(shards[video_id]).times_and_hashes(video_id)
        )
        for key in self.shards():
            provenance = Shard(root, STAGE, key).provenance()
            if provenance is not None:
                require(provenance.settings)  # it stands for all until they are read
                break

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
            return self._frames(video_id)[0]

    def read(
        self, video_id: str, times_s: Sequence[float], first: int, last: int
    ) -> SampledFeatures:
        """The frames from `first` to `last` - 1. times_s: what `times` gave. Raises DataError as
        `times` does."""
        with self._guard:
            file = self._file(video_id)
            regions = file.regions(video_id, first, last)
            hashes = self._frames(video_id)[1][first:last]

        if self.metadata.has_changed(video_id):
            raise DataError(CHANGED.format(video_id))
        return SampledFeatures(regions, self.clock(video_id, times_s[first:last]), hashes)

    def clock(self, video_id: str, times_s: Sequence[float]) -> FrameTimes:
        """Seconds of the sampled frames, and when the video ends."""
        file = self.metadata.of(video_id)
        return FrameTimes(
            tuple(times_s), file.duration_s, missing=file.missing, clock_note=file.clock_note
        )

    def whole(self, video_id: str) -> SampledFeatures:
        """All frames of a video. Raises DataError as `times` does."""
        times = self.times(video_id)
        return self.read(video_id, times, 0, len(times))

    def require_video(self, video_id: str) -> None:
        """Raise DataError for an id that no video has."""
        if video_id not in self.shard_of:
            raise DataError(
                f"search: the index has no video {video_id!r:.200}; `hapvr index status` "
                "says what it has"
            )

    def _file(self, video_id: str) -> FeatureFile:
        self.require_video(video_id)
        return self._opened(self.shard_of[video_id])
