"""Feature shards: one row of region features [9, D] fp16 and the perceptual hash per frame, the rows of a video contiguous and
in time order.

With `features.pooled` a row also has the frame's pooled vector before whitening, [C] fp16, and its magnitude, float32.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import collection_keys
from hapvr.data.shards import Shard, VideoRows
from hapvr.data.tensors import Columns, tensor_field, tensor_shape
from hapvr.errors import DamagedError, DataError

if TYPE_CHECKING:
    from torch import Tensor

STAGE = "features"
POOLED, MAGNITUDE = EXTRAS_COLUMNS = ("pooled", "magnitude")
EXTRAS_SETTING = "pooled"
"""In the settings of shards that have these columns; it does not change their regions."""
HASH_SETTING = "hash"
"""In the settings of shards whose frames have hashes, see `hapvr.video.hashes`; it does not change their regions."""
ROW_GROUP_ROWS = 256
MAX_OPEN_FILES = 64
INDEX_COLUMNS = (pa.field("frames_sha256", pa.string(), nullable=False),)


def fields(*, num_regions: int, dims: int, extras_dims: int = 0) -> tuple[pa.Field, ...]:
    """The columns for [num_regions, dims] features. extras_dims: C of pooled vectors, 0 for features without them."""
    return (
        pa.field("video_id", pa.string(), nullable=False),
        pa.field("frame_index", pa.int32(), nullable=False),
        pa.field("timestamp_s", pa.float64(), nullable=False),
        pa.field("hash", pa.uint64(), nullable=False),
        tensor_field("regions", shape=(num_regions, dims), dtype="float16"),
        *extras_fields(extras_dims),
    )


def feature_columns(
    video_id: str,
    regions: npt.NDArray[np.floating],
    timestamps_s: Sequence[float],
    *extras: npt.NDArray[np.floating],
    hashes: npt.NDArray[np.uint64] | None = None,
) -> Columns:
    """The rows of one video, column by column in the order of `fields`.

    regions: [T, R, D]; timestamps_s: T seconds; extras: pooled [T, C] and magnitude [T], where the shard has them. hashes:
    [T]; None where the frames are not at hand.
    """
    count = len(regions)
    known = np.zeros(count, np.uint64) if hashes is None else hashes
    return [video_id] * count, range(count), timestamps_s, known, regions, *extras


class FeatureFile:
    """The features of one shard, by video id. Memory holds at most one row group in addition to what was asked for."""

    def __init__(self, shard: Shard, *, extras: bool = False) -> None:
        """extras: `regions` appends pooled vectors and magnitudes; DataError where the shard has none."""
        index = shard.read()
        file, places = shard.open_data(index), index.places()
        dims = stored_extras_dims(shard, file, required=extras)
        self.extras_dims = dims if extras else 0
        """C of the pooled vectors that `regions` appends, 0 for none."""
        self._shard = shard
        self._times = VideoRows(shard, ["timestamp_s"], file=file, places=places)
        self._hashes = VideoRows(shard, ["hash"], file=file, places=places)
        columns = ["regions", *(EXTRAS_COLUMNS if extras else ())]
        self._regions = VideoRows(shard, columns, file=file, places=places)

    @property
    def dims(self) -> int:
        """D of the regions."""
        return self._regions.dims

    @property
    def video_ids(self) -> list[str]:
        """Videos that have features, in file order."""
        return self._times.video_ids

    def read(self, video_id: str) -> tuple[npt.NDArray[Any], Sequence[float]]:
        """(regions [T, R, D] with their frame extras, seconds [T]) of a video. Raises DataError if it has none."""
        return self.regions(video_id), self.times(video_id)

    def times(self, video_id: str) -> Sequence[float]:
        """Seconds [T] of the frames of a video. Raises DataError if it has none."""
        times: list[float] = self._times.read(video_id).column("timestamp_s").to_pylist()
        if not all(map(math.isfinite, times)):
            raise DamagedError(
                f"storage: {self._shard.data_name} has times of {video_id} that are not finite; {self._shard.hint}"
            )
        return times

    def hashes(self, video_id: str, first: int = 0, last: int | None = None) -> npt.NDArray[np.uint64]:
        """[T], the perceptual hashes of these frames. Raises DataError if the video has none."""
        return np.asarray(self._hashes.read(video_id, first, last).column("hash"), np.uint64)

    def regions(self, video_id: str, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        """Regions of the frames from `first` to `last` - 1 of a video, with frame extras. Raises DataError if it has none."""
        return joined(self._regions.tensors(video_id, first, last))


class FeatureStore:
    """Features of all shards of some sources, read by id.

    Raises DataError if the shards were made from different settings (weights, sampling, whitening), saying which.
    """

    def __init__(self, root: DataRoot, shard_keys: Iterable[str]) -> None:
        self._shards = [Shard(root, STAGE, key) for key in shard_keys]
        self.settings: dict[str, Any] = dict(self._shards[0].require({}).settings) if self._shards else {}
        """What the features were made with; empty without shards."""
        self._shard_of: dict[str, Shard] = {}
        self._files: OrderedDict[tuple[str, bool], FeatureFile] = OrderedDict()
        for shard in self._shards:
            index = shard.read()
            shard.require(dict.fromkeys(index.provenance.settings) | self.settings)  # the union of both settings
            self._shard_of |= dict.fromkeys(index.places(), shard)

    def available(self) -> set[str]:
        """Ids of the videos that have features."""
        return set(self._shard_of)

    def digests(self) -> dict[str, str]:
        """Shard key -> digest."""
        return {shard.key: shard.digest() for shard in self._shards}

    def read(self, video_ids: Sequence[str], *, extras: bool = False) -> Iterator[tuple[str, Tensor]]:
        """(video id, [T, R, D] fp16) of those ids that exist, in the order of the files: each is read once.

        extras: append pooled vectors and magnitudes, see `hapvr.model.frame_extras`; DataError for features that have none.
        """
        import torch  # those who only decode or count need none

        wanted = set(video_ids)
        for video_id, shard in self._shard_of.items():
            if video_id in wanted:
                yield video_id, torch.from_numpy(self._open(shard, extras=extras).regions(video_id))

    def times(self, video_id: str) -> Sequence[float]:
        """Seconds [T] of the frames of a video, one of `available`."""
        return self._open(self._shard_of[video_id], extras=False).times(video_id)

    def _open(self, shard: Shard, *, extras: bool) -> FeatureFile:
        """A process may open about a thousand files, and a collection may have more shards."""
        place = (shard.key, extras)
        if place not in self._files:
            shard.require(self.settings)  # it may have been made again since
            if len(self._files) == MAX_OPEN_FILES:
                self._files.popitem(last=False)
            self._files[place] = FeatureFile(shard, extras=extras)
        return self._files[place]


def collection_shards(root: DataRoot) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Shards of the collection that have features, and those whose features are unfinished or damaged, sorted."""
    keys = collection_keys(root, root.list_folders(STAGE))
    finished = tuple(key for key in keys if Shard(root, STAGE, key).provenance() is not None)
    return finished, tuple(key for key in keys if key not in finished)


def extras_fields(extras_dims: int, *, shape: Sequence[int] = ()) -> tuple[pa.Field, ...]:
    """The columns for pooled vectors of `extras_dims` values, none for 0; shape: (T,) where a row holds a clip of T frames."""
    if not extras_dims:
        return ()
    return (
        tensor_field(POOLED, shape=(*shape, extras_dims), dtype="float16"),
        tensor_field(MAGNITUDE, shape=shape, dtype="float32"),
    )


def extras_setting(extras_dims: int) -> dict[str, bool]:
    """What a shard with pooled vectors adds to its settings."""
    return {EXTRAS_SETTING: True} if extras_dims else {}


def without_extras(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of features that determine the regions."""
    return {name: value for name, value in settings.items() if name not in (EXTRAS_SETTING, HASH_SETTING)}


def stored_extras_dims(shard: Shard, file: pq.ParquetFile, *, required: bool) -> int:
    """C of the pooled vectors in the data file of a shard; 0 if it has none. Raises DataError if it has to."""
    if POOLED in file.schema_arrow.names:
        return tensor_shape(file.schema_arrow.field(POOLED))[0][-1]
    if required:
        raise DataError(
            f"storage: {shard.stage} of shard {shard.key} has no pooled vectors, which this model needs; set "
            "features.pooled: true and make features and training views again"
        )
    return 0


def joined(values: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Regions alone as they are; regions, pooled and magnitude as `hapvr.model.frame_extras.join_extras` joins them."""
    if len(values) == 1:
        return values[0]
    import torch

    from hapvr.model.frame_extras import FrameExtras, join_extras

    regions, pooled, magnitude = map(torch.from_numpy, values)
    array: npt.NDArray[np.float16] = join_extras(regions, FrameExtras(pooled, magnitude)).numpy()
    return array
