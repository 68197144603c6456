"""The videos of requests, files and URLs, as region features, within what may be read and what it may cost.

Features are cached; any thread may use the same reader.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hapvr.errors import VideoError
from hapvr.installed import FULL_HINT, is_installed
from hapvr.scorer.access import Access
from hapvr.scorer.deadline import ComputeLock, Deadline
from hapvr.scorer.pictures import read_picture
from hapvr.scorer.segments import FrameTimes
from hapvr.scorer.settings import ServingConfig
from hapvr.video.container import check_file
from hapvr.video.jpeg import decode_jpegs
from hapvr.video.pool import SampledVideo, sample_videos
from hapvr.video.settings import DownloadConfig, SamplingConfig
from hapvr.video.sources import ManifestEntry

if TYPE_CHECKING:
    from hapvr.video.download import Downloader

GROUP = 8
"""Videos decoded together and held at once, in addition to the query's and the cache."""

DOWNLOAD_RETRIES = 1

PASSING_REASONS = frozenset({"timeout", "crashed", "missing_file", "too_long", "too_large"})
"""Failures that depend on limits or on the moment; all others stay true for as long as the file does."""

FAILURE_BYTES = 65536
"""Bytes that a failure counts for in the cache."""

BYTES_PER_DECODER = 8 * 2**20
"""Bytes of files for which one more decoding process is worth its start, which takes 0.3 to 0.5 seconds of processor time."""


@dataclass(frozen=True, eq=False)
class SampledFeatures:
    """Features of the sampled frames of one video. regions: [T, R, D] of a floating dtype, with their frame extras where the network
    reads it; clock: their times."""

    regions: NDArray[np.floating]
    clock: FrameTimes

    @property
    def num_bytes(self) -> int:
        return self.regions.nbytes


Outcome = SampledFeatures | VideoError


class FileState(NamedTuple):
    """What changes when a file does."""

    path: str
    device: int
    inode: int
    num_bytes: int
    modified_ns: int


class VideoReader:
    """Decodes and embeds files. A file that was replaced or changed since is read again.

    embed: [B, 3, H, W] uint8 crops -> [B, R, D]. computing: held while the networks run on one batch, so that memory does
    not grow with the number of threads and no video keeps other requests waiting.
    """

    def __init__(
        self,
        embed: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
        *,
        crop_px: int,
        batch_frames: int,
        sampling: SamplingConfig,
        limits: ServingConfig,
        computing: ComputeLock,
    ) -> None:
        self._embed = embed
        self._crop_px = crop_px
        self._batch_frames = batch_frames
        self._sampling = sampling
        self._cache_bytes = limits.cache_bytes
        self._decoding = threading.BoundedSemaphore(limits.max_decoding_requests)
        self._computing = computing
        self._cached: OrderedDict[FileState, Outcome] = OrderedDict()
        self._guard = threading.Lock()

    def read(self, paths: Sequence[Path], *, limits: ServingConfig, deadline: Deadline) -> dict[Path, Outcome]:
        """Features of each file, or why there are none. Holds the features of all of them at once."""
        outcomes: dict[Path, Outcome] = {}
        states: dict[Path, FileState] = {}
        for path in dict.fromkeys(paths):
            try:
                states[path] = _state(path, limits)
            except VideoError as error:
                outcomes[path] = error
        outcomes |= self._known(states)
        if missing := {path: state for path, state in states.items() if path not in outcomes}:
            outcomes |= self._decode(missing, limits=limits, deadline=deadline)
        return {path: _within(outcome, path, limits) for path, outcome in outcomes.items()}

    def picture(self, path: Path, *, limits: ServingConfig, deadline: Deadline) -> SampledFeatures:
        """Features of a still picture, one frame at 0 s. Raises VideoError."""
        frame = read_picture(path, short_side_px=self._sampling.short_side_px, max_bytes=limits.max_bytes)
        with self._computing.hold(deadline):
            regions = self._embed(center_crop(frame, self._crop_px))
        return SampledFeatures(regions, FrameTimes((0.0,)))

    def _decode(
        self, missing: dict[Path, FileState], *, limits: ServingConfig, deadline: Deadline
    ) -> dict[Path, Outcome]:
        if not self._decoding.acquire(timeout=deadline.wait_s()):
            return {path: deadline.error() for path in missing}
        try:
            outcomes = self._known(missing)  # another request may have read them while this one waited
            rest = [path for path in missing if path not in outcomes]
            num_bytes = sum(missing[path].num_bytes for path in rest)
            for path, outcome in self._sampled(rest, num_bytes, limits=limits, deadline=deadline):
                outcomes[path] = outcome
                self._keep(missing[path], outcome)
            return outcomes
        finally:
            self._decoding.release()

    def _sampled(
        self, paths: Sequence[Path], num_bytes: int, *, limits: ServingConfig, deadline: Deadline
    ) -> Iterator[tuple[Path, Outcome]]:
        sampling = self._sampling
        config = sampling.model_copy(
            update={
                # one frame more than allowed tells a video that is too long
                "max_frames": min(sampling.max_frames, limits.max_frames + 1),
                # sample_videos tries a video twice at most
                "timeout_s": min(limits.video_timeout_s, deadline.wait_s()) / 2,
                "max_memory_bytes": min(sampling.max_memory_bytes, limits.max_memory_bytes),
                "workers": min(sampling.workers, max(len(paths), 1), 1 + num_bytes // BYTES_PER_DECODER),
            }
        )
        sampled = sample_videos([(str(path), path) for path in paths], config=config, left_s=deadline.wait_s)
        for number, path in enumerate(paths):
            if deadline.passed():
                yield from ((late, deadline.error()) for late in paths[number:])
                return
            video = next(sampled)
            if video.reason == "timeout" and deadline.passed():
                yield path, deadline.error()
            elif video.reason:
                yield path, VideoError(video.reason, video.message)
            elif len(video.jpegs) > limits.max_frames:
                yield path, _too_long(path, limits)
            else:
                yield path, self._features(video, deadline)

    def _features(self, video: SampledVideo, deadline: Deadline) -> Outcome:
        size = self._batch_frames
        parts = []
        try:
            for start in range(0, len(video.jpegs), size):
                frames = center_crop(decode_jpegs(video.jpegs[start : start + size]), self._crop_px)
                with self._computing.hold(deadline):
                    parts.append(self._embed(frames))
        except VideoError as error:
            return error
        duration_s = None if video.probe is None else video.probe.duration_s
        return SampledFeatures(np.concatenate(parts), FrameTimes(video.timestamps_s, duration_s))

    def _known(self, states: dict[Path, FileState]) -> dict[Path, Outcome]:
        """What the cache has of these."""
        found: dict[Path, Outcome] = {}
        with self._guard:
            for path, state in states.items():
                if state in self._cached:
                    self._cached.move_to_end(state)
                    found[path] = self._cached[state]
        return found

    def _keep(self, state: FileState, outcome: Outcome) -> None:
        if isinstance(outcome, VideoError) and outcome.reason in PASSING_REASONS:
            return
        with self._guard:
            self._cached[state] = outcome
            while sum(getattr(kept, "num_bytes", FAILURE_BYTES) for kept in self._cached.values()) > self._cache_bytes:
                self._cached.popitem(last=False)


class RequestVideos(contextlib.ExitStack):
    """Reads videos by name, a group ahead, in the order in which `names` first have them. A context: it owns downloads.

    A video that is asked for again after its group is read from the cache, or alone.
    """

    def __init__(
        self, reader: VideoReader, names: Iterable[str], *, limits: ServingConfig, access: Access, deadline: Deadline
    ) -> None:
        super().__init__()
        self._reader = reader
        self._order = list(dict.fromkeys(names))
        self._position = {name: number for number, name in enumerate(self._order)}
        self._limits = limits
        self._access = access
        self._deadline = deadline
        self._num_read = 0
        self._held: dict[str, Outcome] = {}
        self._failed: dict[str, VideoError] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="hapvr-request-", ignore_cleanup_errors=True)
        self.callback(self._folder.cleanup)
        self._downloader: Downloader | None = None

    def get(self, name: str) -> SampledFeatures:
        """Features of one of the names. Raises VideoError."""
        position = self._position[name]
        if position >= self._num_read:
            self._held = {}
            self._held = self._read(self._order[position : position + GROUP])
            self._num_read = position + GROUP
        found = self._failed.get(name) or self._held.get(name) or self._read([name])[name]
        if isinstance(found, VideoError):
            raise VideoError(found.reason, str(found))
        return found

    def _read(self, names: list[str]) -> dict[str, Outcome]:
        paths: dict[str, Path] = {}
        found: dict[str, Outcome] = {}
        for name in names:
            try:
                paths[name] = self._local(name)
            except VideoError as error:
                found[name] = error
        outcomes = self._reader.read(list(paths.values()), limits=self._limits, deadline=self._deadline)
        for name, path in paths.items():
            found[name] = outcomes[path]
            if path.is_relative_to(self._folder.name):
                path.unlink(missing_ok=True)
        self._failed |= {name: outcome for name, outcome in found.items() if isinstance(outcome, VideoError)}
        return found

    def _local(self, name: str) -> Path:
        if not name:
            raise VideoError("missing_file", "video: no name is given; wanted a path or an http(s) URL")
        if "://" not in name:
            return self._access.local_path(name)
        self._access.check_url(name)
        if not is_installed("yt_dlp"):
            raise VideoError("unsupported", f"video: {name}: URLs need yt-dlp; {FULL_HINT}, or fetch the file yourself")
        from hapvr.video.download import Downloader  # yt-dlp is loaded only where a URL is asked for

        self._deadline.check()
        if self._downloader is None:
            config = DownloadConfig(max_bytes=self._limits.max_bytes, retries=DOWNLOAD_RETRIES, workers=1)
            self._downloader = self.enter_context(Downloader(config))
        result = self._downloader.download(
            ManifestEntry(video_id=name, uri=name),
            folder=Path(self._folder.name),
            timeout_s=min(self._limits.video_timeout_s, self._deadline.wait_s()),
        )
        if result.path is None:
            raise VideoError(result.reason or result.status, result.message)
        return result.path


def _state(path: Path, limits: ServingConfig) -> FileState:
    """The state of a file now. Raises VideoError for a file that is not there, empty, or too large."""
    try:
        check_file(path)
        found = path.stat()
    except (OSError, ValueError) as error:
        raise VideoError("missing_file", f"video: {str(path)!r}: {error}; check its name") from error
    if found.st_size > limits.max_bytes:
        raise VideoError(
            "too_large", f"video: {path.name} has {found.st_size} bytes; serving.max_bytes is {limits.max_bytes}"
        )
    return FileState(str(path.absolute()), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _within(outcome: Outcome, path: Path, limits: ServingConfig) -> Outcome:
    if isinstance(outcome, SampledFeatures) and len(outcome.regions) > limits.max_frames:
        return _too_long(path, limits)
    return outcome


def _too_long(path: Path, limits: ServingConfig) -> VideoError:
    return VideoError(
        "too_long", f"video: {path.name} has more than {limits.max_frames} sampled frames; see serving.max_frames"
    )


def center_crop(frames: NDArray[np.uint8], size_px: int) -> NDArray[np.uint8]:
    """`hapvr.networks.backbone.center_crop`: [B, 3, H, W] -> [B, 3, size_px, size_px] uint8.

    Frames whose short side differs from 8/7 size_px are resized to it first; of their values a few differ by 1 from torch's.
    """
    short_side = round(size_px * 256 / 224)
    height, width = frames.shape[-2:]
    if min(height, width) != short_side:
        scale = short_side / min(height, width)
        height, width = (max(size_px, round(side * scale)) for side in (height, width))
        rows, columns = (
            _resizing(given, wanted) for given, wanted in zip(frames.shape[-2:], (height, width), strict=True)
        )
        resized = rows @ (frames.astype(np.float32) @ columns.T)
        frames = resized.round().clip(0, 255).astype(np.uint8)
    top, left = (height - size_px) // 2, (width - size_px) // 2
    return np.ascontiguousarray(frames[..., top : top + size_px, left : left + size_px])


def _resizing(given: int, wanted: int) -> NDArray[np.float32]:
    """[wanted, given]: weights of bilinear resizing with antialiasing, a triangle as wide as the pixels that become one."""
    scale = given / wanted
    reach = max(scale, 1.0)
    centers = (np.arange(wanted) + 0.5) * scale
    distances = np.abs(np.arange(given) + 0.5 - centers[:, None])
    weights = np.maximum(1 - distances / reach, 0)
    return np.asarray(weights / weights.sum(1, keepdims=True), np.float32)
