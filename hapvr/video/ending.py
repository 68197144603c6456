"""When the last picture of a video disappears, and whether the file's end is missing."""

from pathlib import Path
from typing import NamedTuple

from hapvr.video.packets import is_cut, is_whole
from hapvr.video.pictures import Picture, Pictures
from hapvr.video.probe import VideoProbe
from hapvr.video.sampler import TOLERANCE_S

MAX_ROUNDING_S = 0.1
"""A video may seem longer than its footage by this much, or by one frame."""


class Ending(NamedTuple):
    """How a video ends."""

    end_s: float
    """when its last picture disappears"""
    missing: str = ""
    """what of its end is missing, or \"\""""


def ending_of(path: Path, probe: VideoProbe, last: Picture, pictures: Pictures) -> Ending:
    """When the last picture disappears. Where the file declares a later end than its packets show,
    the picture stays until then if the file is whole; if not, the end is missing."""
    # a little less: a video of ten seconds has ten sampling times, whatever its container rounds
    rounding_s = min(pictures.interval_s, MAX_ROUNDING_S)
    packets_end_s = last.time_s + max(last.lasts_s - rounding_s, 2 * TOLERANCE_S)
    shift_s = (pictures.clock.last_stamp_s or last.time_s) - last.time_s  # of a broken clock
    ends_at = f"frames end at {last.time_s:.1f} s"
    if pictures.ends_early:
        return Ending(packets_end_s, f"{ends_at}, before the last one")
    slack_s = 0.5 + 2 / (probe.fps or 1)
    declared_s = (probe.duration_s or 0.0) - shift_s
    if last.time_s + last.lasts_s >= declared_s - slack_s:
        if is_cut(path, format_name=probe.container):
            return Ending(packets_end_s, f"{ends_at}, and the file at a part of its bytes")
        return Ending(packets_end_s)

    start_s = pictures.start_s or 0.0
    packets = pictures.packets
    if not probe.of_picture and packets.last_s - start_s >= declared_s + shift_s - slack_s:
        return Ending(packets_end_s)  # it is the sound that lasts longer
    last_packet_s = (packets.last_picture_s or 0.0) - start_s - shift_s
    if last_packet_s <= last.time_s + slack_s and is_whole(
        path,
        format_name=probe.container,
        num_pictures=pictures.num_declared,
        packets=packets,
    ):
        return Ending(max(packets_end_s, declared_s - rounding_s))

    return Ending(
        packets_end_s, f"{ends_at} of the {probe.duration_s:.1f} s that the file declares"
    )
