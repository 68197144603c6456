"""Samples of a video's frames, by one of two modes."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hapvr.video.decode import open_video
from hapvr.video.ending import ending_of
from hapvr.video.needed import sample_needed
from hapvr.video.picture_clock import jumps_said
from hapvr.video.pictures import Picture, Pictures
from hapvr.video.probe import VideoProbe
from hapvr.video.sampler import Keep, Sampler, Wanted
from hapvr.video.settings import SamplingMode
from hapvr.video.sparse import sample_key_frames
from hapvr.video.stream_reader import UnsuitedError


class Samples(NamedTuple):
    """The sampled frames, as they were kept, and their times."""

    probe: VideoProbe
    frames: list[Any]
    times_s: list[float]
    """when each is shown, in seconds from the file's start"""
    missing: str
    """what seems to be missing from the file or was not read, or \"\""""
    clock_note: str
    """what was wrong with the file's clock, or \"\""""
    mode: SamplingMode = "thorough"
    """how the video was sampled, which may differ from the wanted mode"""


@dataclass(frozen=True)
class Reading:
    """How a file is read."""

    threads: int = 1
    """of the decoder; damage is decoded by one thread, so that it looks the same on every
    machine"""
    archive_codecs: bool = False
    """whether those of ARCHIVE_DECODERS are decoded, too"""
    progress: Callable[[float], None] = lambda seconds: None
    """is called with the times of pictures"""


def _itself(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return frame


def sample_frames(
    path: Path,
    *,
    fps: float,
    short_side_px: int | None,
    keep: Keep = _itself,
    max_frames: int | None = None,
    mode: SamplingMode = "thorough",
    reading: Reading | None = None,
) -> Samples:
    """Frames of a video, all of the first one's size.

    Thoroughly: those on display at 0, 1/fps, 2/fps ... seconds after the first one (method 1.1);
    pictures that these do not need are not decoded where that surely changes nothing
    (`sample_needed`). A frame that stays for more than LONG_STEP_S is sampled all that time, or for
    PAUSE_S where there is no sound beside it. A video shorter than 1/fps gives one frame; a damaged
    video gives the frames that can be decoded. With max_frames, the file is read only up to the
    frame after these.

    By key frames: see `hapvr.video.sparse`. Videos that are short, damaged, or otherwise unsuited
    to this mode, are sampled thoroughly.

    short_side_px: the frames' short side after rotation and pixel aspect; None: as stored
    keep: takes a frame [H, W, 3] uint8 RGB and returns what to keep of it; called once for a frame
    that is shown at several sampling times

    Raises: VideoError as `open_video` does.
    """
    wanted = Wanted(fps, short_side_px, keep, max_frames)
    reading = reading or Reading()
    if mode == "key_frames":
        with contextlib.suppress(UnsuitedError):
            sample = sample_key_frames(
                path,
                wanted=wanted,
                archive_codecs=reading.archive_codecs,
                progress=reading.progress,
            )
            return Samples(*sample, clock_note="", mode=mode)

    return _sample_thoroughly(path, wanted, reading)


def _sample_thoroughly(path: Path, wanted: Wanted, reading: Reading) -> Samples:
    try:
        sample = sample_needed(
            path,
            wanted=wanted,
            threads=reading.threads,
            archive_codecs=reading.archive_codecs,
            progress=reading.progress,
        )
    except UnsuitedError:
        return sample_every_picture(path, wanted, reading)

    return Samples(*sample, clock_note="")


def sample_every_picture(path: Path, wanted: Wanted, reading: Reading) -> Samples:
    """The thorough sample of a video, for which every picture is decoded.

    Raises: VideoError as `open_video` does.
    """
    for threads in sorted({reading.threads, 1}, reverse=True):
        with open_video(path, threads=threads, archive_codecs=reading.archive_codecs) as opened:
            probe, pictures = opened
            sampler = Sampler(probe, wanted)
            _fill(sampler, path, probe, pictures, progress=reading.progress, gives_up=threads > 1)
            if threads == 1 or not pictures.is_damaged:
                note = jumps_said(pictures.clock.jumps)
                return Samples(probe, sampler.kept, sampler.times_s, sampler.missing, note)

    raise AssertionError("one thread ends the loop")


def _fill(
    sampler: Sampler,
    path: Path,
    probe: VideoProbe,
    pictures: Pictures,
    *,
    progress: Callable[[float], None],
    gives_up: bool,
) -> None:
    """Show pictures to a sampler until it is full. gives_up: whether to stop at a damaged one."""
    timed: Iterator[Picture | None] = chain(pictures, [None])
    for picture, following in pairwise(timed):
        if picture is None or (pictures.is_damaged and gives_up):
            return
        progress(picture.time_s)
        if following is not None:
            until_s = following.time_s
        else:
            ending = ending_of(path, probe, picture, pictures)
            until_s = ending.end_s
            sampler.missing = ending.missing or str(pictures.damage)

        longest_s = pictures.sampled_s(picture, until_s)
        sampler.show(picture, until_s=until_s, longest_s=longest_s)
        if sampler.is_full:
            return
