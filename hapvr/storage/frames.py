"""Frame shards: one JPEG per sampled frame, the rows of a video contiguous and in time order."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from hapvr.storage.rows import VideoRows
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


class FrameFile:
    """The frames of one shard, by video id; memory holds one row group."""

    def __init__(self, shard: Shard) -> None:
        self._rows = VideoRows(shard, ["timestamp_s", "jpeg"])

    @property
    def video_ids(self) -> list[str]:
        """Videos that have frames, in file order."""
        return self._rows.video_ids

    def num_frames(self, video_id: str) -> int:
        return self._rows.num_rows(video_id)

    def timestamps_s(self, video_id: str) -> list[float]:
        """Seconds of each frame of a video."""
        seconds: list[float] = self._rows.read(video_id).column("timestamp_s").to_pylist()
        return seconds

    def read(self, video_id: str) -> VideoFrames:
        """The frames of a video. Raises DataError if it has none."""
        table = self._rows.read(video_id)
        return VideoFrames(
            video_id, tuple(table.column("jpeg").to_pylist()), tuple(table.column("timestamp_s").to_pylist())
        )
