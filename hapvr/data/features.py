"""Feature shards: one row of region features [9, D] fp16 and the perceptual hash per frame, the
rows of a video contiguous and in time order. View shards: one row per augmented clip, the views of
a video contiguous, weak ones first, and one row group.

`training_views` holds region features [T, 9, D]; `pseudo_labels` the teacher's embeddings [T, D']
of the same views, row for row. From these training computes the ternary labels of the frames of
each pair of clips.

With `features.pooled` regions carry the frame's extras, [9 + k, D], see `hapvr.model.family`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import collection_keys, require_shards
from hapvr.data.shards import Shard, frame_fields
from hapvr.data.tensors import tensor_field
from hapvr.data.video_rows import VideoRows
from hapvr.errors import DataError
from hapvr.model.settings import NUM_REGIONS

if TYPE_CHECKING:
    from torch import Tensor

STAGE = "features"
EXTRAS_SETTING = "pooled"
"""In the settings of shards with frame extras: C of the pooled vectors. It does not affect their
regions."""
IMPORTED = "imported"
"""In the settings of shards, and of a whitening, that were not made here."""
MAX_NORM = 1.01
"""The norm of a region at most; imported features may have any."""
HASH_SETTING = "hash"
"""In the settings of shards whose frames have hashes, see `hapvr.video.frames`; it does not affect
their regions."""
INDEX_COLUMNS = (pa.field("frames_sha256", pa.string(), nullable=False),)

VIEWS_STAGE = "training_views"
LABELS_STAGE = "pseudo_labels"
DRAWING_VERSION = 4
"""Raised when the rules change by which clips are drawn; views of another version are rebuilt. 4:
in video-in-video a clip is pasted on another video."""
VIEW_INDEX_COLUMNS = (pa.field("num_frames", pa.int32(), nullable=False),)
"""The number of sampled frames of the video."""


def fields(*, num_regions: int, dims: int) -> tuple[pa.Field, ...]:
    """The columns for [num_regions, dims] features, including the rows of frame extras: those of
    every frame shard, then the frame's hash (NO_HASH where the frames are not at hand) and its
    regions."""
    hashes = pa.field("hash", pa.uint64(), nullable=False)
    return frame_fields(hashes, tensor_field("regions", shape=(num_regions, dims)))


def view_fields(column: str, *, shape: Sequence[int]) -> tuple[pa.Field, ...]:
    """The columns of a view shard whose tensors are `column` of this shape, fp16; `host_id`: the
    video it is pasted on, "" for none."""
    ids = (pa.field(name, pa.string(), nullable=False) for name in ("video_id", "host_id"))
    return (*ids, tensor_field(column, shape=shape))


class FeatureFile(VideoRows):
    """The features of one shard, by video id; `dims` is D of the regions."""

    def __init__(self, shard: Shard, *, extras: bool = False) -> None:
        """extras: `regions` carries frame extras; DataError where the shard has none."""
        super().__init__(shard, "timestamp_s", "hash", "regions")
        self._part = frame_part(shard, self.settings, extras=extras)

    def times(self, video_id: str) -> Sequence[float]:
        """Seconds [T] of the frames of a video. Raises DataError if it has none."""
        return list(self.rows(video_id, 0, None, "timestamp_s").column("timestamp_s").to_pylist())

    def hashes(
        self, video_id: str, first: int = 0, last: int | None = None
    ) -> npt.NDArray[np.uint64]:
        """[T], the perceptual hashes of these frames. Raises DataError if the video has none."""
        return np.asarray(self.rows(video_id, first, last, "hash").column("hash"), np.uint64)

    def times_and_hashes(self, video_id: str) -> tuple[Sequence[float], npt.NDArray[np.uint64]]:
        """`times` and `hashes` of all frames of a video, from one reading of the file."""
        rows = self.rows(video_id, 0, None, "timestamp_s", "hash")
        times = tuple(rows.column("timestamp_s").to_pylist())
        return times, np.asarray(rows.column("hash"), np.uint64)

    def regions(self, video_id: str, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        """Regions of the frames from `first` to `last` - 1 of a video, with frame extras. Raises
        DataError if it has none."""
        return self.tensors(video_id, first, last, self._part)


class ViewFile(VideoRows):
    """The views of one shard; `dims` is D, the last axis of the stored tensors."""

    def __init__(self, shard: Shard, *, extras: bool = False) -> None:
        """extras: `read` gives frame extras, too; DataError where the shard has none."""
        super().__init__(shard)
        self.extras_dims: int = self.settings.get(EXTRAS_SETTING, 0)
        """C of the pooled vectors, 0 without any."""
        self._part = frame_part(shard, self.settings, extras=extras)
        self.hosts: dict[str, list[str]] = {}
        """For each view of a video the video it is pasted on, "" for none."""
        with shard.corruption_errors():
            for row in self._file.read(columns=["video_id", "host_id"]).to_pylist():
                self.hosts.setdefault(row["video_id"], []).append(row["host_id"])

    def read(self, video_id: str) -> Tensor:
        """All views of a video: [V, *shape] fp16, weak ones first; [V, T, R + k, D] with extras."""
        import torch  # not needed to verify files

        return torch.from_numpy(self.tensors(video_id, part=self._part))


class FeatureStore:
    """Features of all shards of some sources, read by id. Raises DataError naming settings
    (weights, sampling, whitening) that differ."""

    def __init__(self, root: DataRoot, shard_keys: Iterable[str]) -> None:
        self._shards = [Shard(root, STAGE, key) for key in shard_keys]
        self.settings: dict[str, Any] = {}
        """What the features were made with; empty without shards."""
        self._shard_of: dict[str, Shard] = {}
        for shard in self._shards:
            index = shard.read()
            self.settings = self.settings or dict(index.provenance.settings)
            # A setting that this shard has alone differs, too.
            shard.require(dict.fromkeys(index.provenance.settings) | self.settings)
            self._shard_of |= dict.fromkeys(index.places(), shard)

    def available(self) -> set[str]:
        """Ids of the videos that have features."""
        return set(self._shard_of)

    def digests(self) -> dict[str, str]:
        """Shard key -> digest."""
        return {shard.key: shard.digest() for shard in self._shards}

    def read(
        self, video_ids: Sequence[str], *, extras: bool = False
    ) -> Iterator[tuple[str, Tensor]]:
        """(video id, [T, R, D] fp16) of those ids that exist, in the order of the files, each of
        which is read once. extras: with frame extras, see `hapvr.model.family`; DataError for
        features that have none."""
        import torch  # not needed to list or count

        wanted = set(video_ids)
        chosen = (item for item in self._shard_of.items() if item[0] in wanted)
        for shard, of_shard in groupby(chosen, key=itemgetter(1)):
            shard.require(self.settings)  # it may have been rebuilt since
            file = FeatureFile(shard, extras=extras)
            for video_id, _ in of_shard:
                yield video_id, torch.from_numpy(file.regions(video_id))


def collection_shards(root: DataRoot) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Shards of the collection that have features, and those whose features are unfinished or
    damaged, sorted. Raises as `require_shards` does."""
    finished = []
    unfinished = []
    listed = []
    for key in collection_keys(root, root.list_folders(STAGE)):
        provenance = Shard(root, STAGE, key).provenance()
        if provenance is None:
            unfinished.append(key)
            continue

        finished.append(key)
        if IMPORTED not in provenance.settings:
            listed.append(key)

    require_shards(root, listed)
    return tuple(finished), tuple(unfinished)


def without_extras(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of features that determine the regions."""
    extras = (EXTRAS_SETTING, HASH_SETTING)
    return {name: value for name, value in settings.items() if name not in extras}


def frame_part(shard: Shard, settings: Mapping[str, Any], *, extras: bool) -> Any:
    """The index that selects what is read of stored tensors [..., R + k, D]: all, or the regions.
    Raises DataError for extras that were not stored."""
    has_extras = EXTRAS_SETTING in settings
    if extras and not has_extras:
        raise DataError(
            f"storage: {shard.stage} of shard {shard.key} has no pooled vectors, which this "
            "model needs; set features.pooled: true and extract features and training views again"
        )
    if extras or not has_extras:
        return ...
    return (..., slice(NUM_REGIONS), slice(None))
