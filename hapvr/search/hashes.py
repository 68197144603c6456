"""The frames that an index holds, video by video, with the hashes of their pictures, which tell
whether stored features are still those that were indexed."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hapvr.video.frames import Hashes

VIDEO_ID = pa.field("video_id", pa.string(), nullable=False)
SECOND = pa.field("second", pa.float32(), nullable=False)
FOUND_FRAMES = pa.schema(
    [("query_frame", pa.int32()), VIDEO_ID, SECOND, ("similarity", pa.float32())]
)
"""What look-ups of frames give: the number of the query frame, and a frame of a video."""


class IndexedFrames:
    """Times and hashes of the frames of an index. Any thread may ask."""

    def __init__(self, frames: pa.Table) -> None:
        """frames: columns video_id, second and hash, those of a video contiguous."""
        self._frames = frames.select(["video_id", "second"])
        self._hashes = frames["hash"].to_numpy()
        self._places: dict[str, tuple[int, int]] = {}
        """First and last + 1 row of each video."""
        start = 0
        for chunk in frames["video_id"].chunks:
            runs = pc.run_end_encode(chunk)
            first = start
            for name, run_end in zip(
                runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True
            ):
                last = start + run_end
                began, _ = self._places.get(name, (first, 0))  # chunks may cut a video
                self._places[name] = (began, last)
                first = last

            start += len(chunk)

    def video_ids(self) -> list[str]:
        """Of all frames, each once."""
        return list(self._places)

    def holds(self, video_id: str, times_s: Sequence[float], hashes: Hashes) -> bool:
        """Whether the frames of a part of a video, at times [T] and with hashes [T], are those that
        are here."""
        first, last = self._places.get(video_id, (0, 0))
        seconds = self._frames["second"][first:last].to_numpy()
        times = np.asarray(times_s, np.float32)
        inside = (seconds >= times[0]) & (seconds <= times[-1])
        place = np.searchsorted(times, seconds[inside])
        same_time = times[place] == seconds[inside]
        same_hash = hashes[place] == self._hashes[first:last][inside]
        return bool(np.all(same_time & same_hash))
