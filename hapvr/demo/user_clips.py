"""The clips below a folder of a user, and their frames; they are decoded in confined processes."""

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from hapvr.demo.scene import Pixels
from hapvr.errors import ArgumentError
from hapvr.video.decode import probe_video
from hapvr.video.pool import sample_videos
from hapvr.video.sampling import sample_frames
from hapvr.video.sandbox import call_confined
from hapvr.video.settings import SamplingConfig
from hapvr.video.sources import ManifestEntry, path_of_text, scan_folder

MAX_SECONDS = 60.0
MAX_FRAMES = 600
MAX_FPS = 10.0
SHORT_SIDES_PX = (64, 240)
MAX_NAME_BYTES = 1000
MAX_PART_BYTES = 240
"""The longest name in ids, and of each folder in it; folders and suffixes are added around it."""


@dataclass(frozen=True)
class UserClip:
    """A decodable file. file: its name in ids, the path below the folder that was searched, or a
    digest of a long one. duration_s: as the container says; None where it does not."""

    path: Path
    file: str
    sha256: str
    duration_s: float | None = None

    def place(self, kind: str = "none") -> str:
        """Where an edited copy, or the clip itself, is stored below `videos/` of a benchmark."""
        if kind == "none":
            return f"originals/{self.file}"
        return f"copies/{kind}/{self.file}.mp4"


def find_clips(
    videos: Path, *, out: Path, name: str, entries: Iterable[ManifestEntry] | None = None
) -> tuple[list[list[UserClip]], set[Path]]:
    """Groups of identical decodable files below `videos`, in the order of first appearance, and the
    files that do not decode; each file is tried in a worker process.

    name: of the source, for messages.
    entries: the files, as `scan_folder` lists them; None: it is called.

    Raises: DataError if the folder is missing or holds no videos, ArgumentError if `out`, where the
    results go, is inside it: the next call would take the results for input.
    """
    if out.resolve().is_relative_to(videos.resolve()):
        raise ArgumentError(
            f"out: {out} is inside the folder of clips {videos}; choose a folder outside of it"
        )

    if entries is None:
        entries = scan_folder(videos, source=name)
    items = [(entry.video_id, path_of_text(entry.uri)) for entry in entries]

    groups: dict[str, list[UserClip]] = {}
    unusable = set()
    for video in sample_videos(items, config=SamplingConfig(), frames=False):
        if video.reason:
            unusable.add(video.path)
            continue

        file = _short_name(video.video_id.removeprefix(f"{name}/"), suffix=video.path.suffix)
        duration_s = None if video.probe is None else video.probe.duration_s
        clip = UserClip(video.path, file, video.file_sha256, duration_s)
        groups.setdefault(video.file_sha256, []).append(clip)

    return list(groups.values()), unusable


def _short_name(file: str, *, suffix: str) -> str:
    """A file's name, or a digest of one that is too long for file systems."""
    encoded = file.encode()
    longest_part = max(map(len, encoded.split(b"/")))
    if len(encoded) <= MAX_NAME_BYTES and longest_part <= MAX_PART_BYTES:
        return file
    return hashlib.blake2b(encoded, digest_size=16).hexdigest() + suffix[:16]


def load_frames(path: Path) -> tuple[Pixels, float]:
    """Frames [1 <= N <= MAX_FRAMES, H, W, 3] of the first minute, and their rate per second. The
    short side is within SHORT_SIDES_PX; the rate is lower for longer clips. Raises RuntimeError if
    the clip cannot be decoded."""
    data = call_confined(partial(_saved_frames, path), readable=path)
    with np.load(io.BytesIO(data)) as saved:
        return saved["frames"], float(saved["fps"])


def _saved_frames(path: Path) -> bytes:
    """Runs in the confined process."""
    probe = probe_video(path)
    seconds = min(probe.duration_s or MAX_SECONDS, MAX_SECONDS)
    fps = min(MAX_FPS, MAX_FRAMES / seconds) if seconds > 0 else MAX_FPS
    short_side_px = int(np.clip(min(probe.width_px, probe.height_px), *SHORT_SIDES_PX))
    samples = sample_frames(path, fps=fps, short_side_px=short_side_px, max_frames=MAX_FRAMES)
    saved = io.BytesIO()
    np.savez(saved, frames=np.stack(samples.frames), fps=fps)
    return saved.getvalue()
