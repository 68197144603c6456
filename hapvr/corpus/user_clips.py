"""The user's files: which there are, and which can be decoded."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hapvr.corpus.textures import Pixels
from hapvr.errors import ArgumentError
from hapvr.seeding import numpy_rng
from hapvr.video.decode import probe_video, sample_frames
from hapvr.video.pool import inspect_videos
from hapvr.video.settings import SamplingConfig
from hapvr.video.sources import path_of_text, scan_folder

MAX_NAME_BYTES = 246
MAX_PATH_BYTES = 1000
MAX_SECONDS = 60.0
MAX_FRAMES = 600
MAX_FPS = 10.0
MAX_SHORT_SIDE_PX = 240
MIN_SHORT_SIDE_PX = 64


@dataclass(frozen=True)
class UserClip:
    """A decodable file. file: its name in ids, the path below the folder that was searched, or a digest of a long one.

    duration_s: as the container says; None where it does not.
    """

    path: Path
    file: str
    sha256: str
    duration_s: float | None = None

    def draw(self, seed: int) -> float:
        """A number in [0, 1) that depends on content and seed only, so that renamed and identical files draw alike."""
        return float(numpy_rng(seed, "own clip", self.sha256).uniform())


@dataclass(frozen=True)
class UnusableFile:
    """A file that gives no frames. reason: the short code of VideoError."""

    path: Path
    reason: str
    message: str


@dataclass(frozen=True)
class FoundFiles:
    """What a folder holds. clips: decodable files. unusable: files named like videos that do not decode. ignored: the
    relative paths of all others."""

    clips: tuple[UserClip, ...]
    unusable: tuple[UnusableFile, ...]
    ignored: tuple[str, ...]


def find_clips(videos: Path, *, out: Path, name: str, workers: int) -> FoundFiles:
    """Try every video file below `videos` in worker processes; `scan_folder` says which files those are.

    name: of the source, for messages. Raises DataError if the folder is missing or holds no videos, ArgumentError if
    `out`, where the results go, lies inside it: the next call would take the results for input.
    """
    if out.resolve().is_relative_to(videos.resolve()):
        raise ArgumentError(f"out: {out} lies inside the folder of clips {videos}; choose a folder outside of it")
    scan = scan_folder(videos, source=name)
    items = [(entry.video_id, path_of_text(entry.uri)) for entry in scan.entries]
    clips, unusable = [], []
    for found in inspect_videos(items, config=SamplingConfig(workers=workers)):
        if found.reason:
            unusable.append(UnusableFile(found.path, found.reason, found.message))
        else:
            duration_s = None if found.probe is None else found.probe.duration_s
            file = _file_name(found.video_id.removeprefix(f"{name}/"))
            clips.append(UserClip(found.path, file, found.sha256, duration_s))
    return FoundFiles(tuple(clips), tuple(unusable), scan.ignored)


def _file_name(name: str) -> str:
    """The name below a benchmark's folder, where longer paths and suffixes are put around it."""
    parts = name.encode().split(b"/")
    if len(name.encode()) <= MAX_PATH_BYTES and max(len(part) for part in parts) <= MAX_NAME_BYTES:
        return name
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest() + PurePosixPath(name).suffix[:16]


def without_repeats(clips: Sequence[UserClip]) -> list[list[UserClip]]:
    """Groups of clips with identical bytes, in the order of first appearance; mostly groups of one."""
    groups: dict[str, list[UserClip]] = {}
    for clip in clips:
        groups.setdefault(clip.sha256, []).append(clip)
    return list(groups.values())


def load_frames(path: Path) -> tuple[Pixels, float]:
    """Frames [1 <= N <= MAX_FRAMES, H, W, 3] of the first minute, and their rate per second. Raises VideoError.

    The short side is between MIN_SHORT_SIDE_PX and MAX_SHORT_SIDE_PX; the rate is lower for longer clips.
    """
    probe = probe_video(path)
    seconds = min(probe.duration_s or MAX_SECONDS, MAX_SECONDS)
    fps = min(MAX_FPS, MAX_FRAMES / seconds) if seconds > 0 else MAX_FPS
    short_side_px = min(max(min(probe.width_px, probe.height_px), MIN_SHORT_SIDE_PX), MAX_SHORT_SIDE_PX)
    return sample_frames(path, fps=fps, short_side_px=short_side_px, max_frames=MAX_FRAMES).frames, fps
