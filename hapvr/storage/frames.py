"""Frame shards: one JPEG per sampled frame, the rows of a video contiguous and in time order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from hapvr.storage.shards import RowWriter, Shard

STAGE = "frames"
ROW_GROUP_ROWS = 256
FIELDS = (
    pa.field("video_id", pa.string(), nullable=False),
    pa.field("frame_index", pa.int32(), nullable=False),
    pa.field("timestamp_s", pa.float64(), nullable=False),
    pa.field("jpeg", pa.binary(), nullable=False),
)
INDEX_COLUMNS = (
    pa.field("width_px", pa.int32(), nullable=False),
    pa.field("height_px", pa.int32(), nullable=False),
    pa.field("decoder", pa.string(), nullable=False),
)


@dataclass(frozen=True)
class VideoFrames:
    """The sampled frames of one video: N JPEGs and their timestamps in seconds."""

    video_id: str
    jpegs: tuple[bytes, ...]
    timestamps_s: tuple[float, ...]


def write_frames(writer: RowWriter, video: VideoFrames) -> None:
    """Append one video's frames."""
    count = len(video.jpegs)
    columns = [
        pa.array([video.video_id] * count, pa.string()),
        pa.array(range(count), pa.int32()),
        pa.array(video.timestamps_s, pa.float64()),
        pa.array(video.jpegs, pa.binary()),
    ]
    writer.write(pa.RecordBatch.from_arrays(columns, schema=writer.schema))


def read_frames(shard: Shard, *, video_ids: Sequence[str] | None = None) -> Iterator[VideoFrames]:
    """The shard's videos one after the other, in file order; memory holds one video and one row group."""
    wanted = None if video_ids is None else set(video_ids)
    current: str | None = None
    jpegs: list[bytes] = []
    timestamps: list[float] = []
    with shard.open_data() as file:
        for batch in file.iter_batches(batch_size=ROW_GROUP_ROWS):
            for video_id, timestamp, jpeg in zip(
                batch.column("video_id").to_pylist(),
                batch.column("timestamp_s").to_pylist(),
                batch.column("jpeg").to_pylist(),
                strict=True,
            ):
                if wanted is not None and video_id not in wanted:
                    continue
                if current is not None and video_id != current:
                    yield VideoFrames(current, tuple(jpegs), tuple(timestamps))
                    jpegs, timestamps = [], []
                current = video_id
                jpegs.append(jpeg)
                timestamps.append(timestamp)
    if current is not None:
        yield VideoFrames(current, tuple(jpegs), tuple(timestamps))
