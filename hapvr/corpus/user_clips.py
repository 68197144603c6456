"""The user's files: which there are, and which can be decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hapvr.corpus.textures import Pixels
from hapvr.errors import ArgumentError, VideoError
from hapvr.progress import Progress, no_progress
from hapvr.provenance import file_sha256
from hapvr.seeding import numpy_rng
from hapvr.video.decode import probe_video, sample_frames
from hapvr.video.sources import scan_folder

MAX_SECONDS = 60.0
MAX_FRAMES = 600
MAX_FPS = 10.0
MAX_SHORT_SIDE_PX = 240
MIN_SHORT_SIDE_PX = 64


@dataclass(frozen=True)
class UserClip:
    """A decodable file. file: its name in ids, the path below the folder that was searched."""

    path: Path
    file: str
    sha256: str

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
    """What a folder holds. clips: decodable; unusable: only named like videos; ignored: relative paths of the rest."""

    clips: tuple[UserClip, ...]
    unusable: tuple[UnusableFile, ...]
    ignored: tuple[str, ...]


def find_clips(videos: Path, *, out: Path, name: str, progress: Progress = no_progress) -> FoundFiles:
    """Try every video file below `videos`; the rules of `scan_folder` say which files those are.

    name: of the source, for messages. Raises DataError if the folder is missing or holds no videos, ArgumentError if
    `out`, where the results go, lies inside it and would be taken for input the next time.
    """
    if out.resolve().is_relative_to(videos.resolve()):
        raise ArgumentError(f"out: {out} lies inside the folder of clips {videos}; choose a folder outside of it")
    scan = scan_folder(videos, source=name)
    clips, unusable = [], []
    for index, entry in enumerate(scan.entries):
        path = Path(entry.uri)
        try:
            probe_video(path)
            clips.append(UserClip(path, entry.video_id.removeprefix(f"{name}/"), file_sha256(path)))
        except VideoError as error:
            unusable.append(UnusableFile(path, error.reason, str(error)))
        progress(index + 1, len(scan.entries))
    return FoundFiles(tuple(clips), tuple(unusable), scan.ignored)


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
