"""The query that the demo searches for at its end."""

from pathlib import Path

from hapvr.demo.edits import EDITS
from hapvr.demo.files import write_mp4
from hapvr.demo.user_clips import load_frames
from hapvr.seeding import numpy_rng

QUERY_EDITS = ("crop", "logo")


def write_edited_part(source: Path, *, query: Path) -> None:
    """Write the middle half of a video, cropped and with a logo. Processes that have threads at
    work call it by `hapvr.video.pool.in_workers`.

    Raises: RuntimeError if the video cannot be decoded
    """
    frames, fps = load_frames(source)
    quarter = len(frames) // 4
    part = frames[quarter : len(frames) - quarter]
    rng = numpy_rng(0, "query")
    for name in QUERY_EDITS:
        part = EDITS[name].apply(part, part, fps, rng)

    write_mp4(query, part, fps=fps)
