"""What a file really holds, as `hapvr.video.measure` counts it: headers may lie."""

from dataclasses import dataclass

MEASURE_VERSION = 8
"""Changes with what is measured of the same file."""
DETAIL_SCALES = (0.25, 0.35, 0.5, 0.66)
"""Scales at which the detail of a picture is measured."""


@dataclass(frozen=True)
class FileFacts:
    """What the video stream that is decoded holds.

    video_bytes: of its packets, without sound, attachments and headers. length_s: of the pictures,
    by the times of their packets. declared_s: what headers say of it, None where they say nothing.
    fps: pictures per second while they move, 0 for a single one. sound: whether there is sound,
    other than silence, for half of the length or more. damage: why only a part can be read, else
    "". pause_s: the longest time from one picture to the next. detail: see
    `hapvr.video.measure.detail_of`, none where no picture could be measured.
    new_share: part of the pictures that are neither repeated nor mixed of others, None where that
    is not known, as where nothing moves. woven: whether pictures have the rows of two moments in
    turn. fineness, blockiness: see `hapvr.video.detail`, 0 where no picture could be measured.
    num_pictures: how many there are, 0 where they were not counted."""

    video_bytes: int
    length_s: float
    declared_s: float | None
    fps: float
    sound: bool
    damage: str
    pause_s: float = 0.0
    detail: tuple[float, ...] = ()
    new_share: float | None = None
    woven: bool = False
    fineness: float = 0.0
    blockiness: float = 0.0
    num_pictures: int = 0
