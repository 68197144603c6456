"""Frame shards: one JPEG per sampled frame, the rows of a video contiguous and in time order."""

import hashlib
import io
import struct
from dataclasses import dataclass

import pyarrow as pa
from PIL import Image

from hapvr.data.shards import Shard, frame_fields
from hapvr.data.video_rows import VideoRows

STAGE = "frames"
FIELDS = frame_fields(pa.field("jpeg", pa.binary(), nullable=False))
INDEX_COLUMNS = (
    pa.field("file_sha256", pa.string(), nullable=False),
    pa.field("frames_sha256", pa.string(), nullable=False),
    pa.field("is_partial", pa.bool_()),
    pa.field("tried_with", pa.string()),
    pa.field("sampled", pa.string()),
)
"""is_partial: whether a video that has frames lacks a part;
tried_with: for a video that failed here, see `hapvr.video.pool.reader_state`;
sampled: the `sampling.mode` of its frames; null in older rows stands for `thorough`."""
READER_VERSION = 3
"""Raised when the same file gives other frames or times: 2 counts from the file's start, 3 keeps
other frames between key frames of HEVC, VP9 and AV1."""


@dataclass(frozen=True)
class VideoFrames:
    """The sampled frames of one video: N JPEGs and their timestamps in seconds."""

    jpegs: tuple[bytes, ...]
    timestamps_s: tuple[float, ...]

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of times and JPEGs."""
        digest = hashlib.sha256()
        for timestamp_s, jpeg in zip(self.timestamps_s, self.jpegs, strict=True):
            digest.update(struct.pack("<dq", timestamp_s, len(jpeg)))
            digest.update(jpeg)

        return digest.hexdigest()


def frames_digest(shard: Shard) -> str:
    """A digest that changes with the frames or the fate of a video, but not with how frames are
    stored. Raises DataError if the shard is unfinished."""
    names = ("video_id", "status", "reason", "message", "frames_sha256")
    fates = [tuple(row[name] for name in names) for row in shard.rows()]
    return hashlib.sha256(repr(fates).encode()).hexdigest()


class FrameFile(VideoRows):
    """The frames of one shard, by video id."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard, "timestamp_s", "jpeg")

    def read(self, video_id: str) -> VideoFrames:
        """The frames of a video. Raises DataError if it has none."""
        table = self.rows(video_id)
        return VideoFrames(
            jpegs=tuple(table.column("jpeg").to_pylist()),
            timestamps_s=tuple(table.column("timestamp_s").to_pylist()),
        )


def thumbnail(jpeg: bytes, *, size_px: tuple[int, int]) -> Image.Image:
    """A frame as an RGB picture no larger than (width, height)."""
    with Image.open(io.BytesIO(jpeg), formats=["JPEG"]) as frame:
        frame.thumbnail(size_px)
        return frame.convert("RGB")
