"""The videos and pictures of requests, files and URLs, as region features, within what may be read
and what it may cost.

Features are cached; any thread may use the same reader.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hapvr.errors import FULL_HINT, VideoError, is_installed
from hapvr.networks.settings import BATCH_FRAMES
from hapvr.scorer.access import Access, ComputeLock, Deadline
from hapvr.scorer.query_views import WHOLE, crops_of
from hapvr.scorer.segments import FrameTimes
from hapvr.settings import ServingConfig
from hapvr.video.decode import FileState, check_file
from hapvr.video.frames import Hashes, decode_jpegs, frame_hashes, square
from hapvr.video.pool import sample_videos
from hapvr.video.settings import DownloadConfig, Picture, SamplingConfig
from hapvr.video.sources import ManifestEntry

if TYPE_CHECKING:
    from hapvr.video.download import Downloader

GROUP = 8
"""Videos decoded together and held at once, in addition to the query's and the cache."""

MAX_DECODING_REQUESTS = 2
"""Requests that decode at the same time; others wait."""

CACHE_BYTES = 256 * 2**20
"""Memory for the features of the queries seen last, and for the embeddings of the videos compared
last."""

Key = TypeVar("Key")
Value = TypeVar("Value")

BYTES_PER_DECODER = 8 * 2**20
"""Bytes of files for which one more decoding process is worth its start, which takes 0.3 to 0.5
seconds of processor time."""


@dataclass(frozen=True, eq=False)
class SampledFeatures:
    """Features of the sampled frames of one video. regions: [T, R, D] of a floating dtype, with
    their frame extras where the network reads them; clock: their times; hashes: [T], see
    `frame_hashes`; crops: the same frames of each crop of a query, see `hapvr.scorer.query_views`;
    jpegs: the frames themselves, of a query.
    """

    regions: NDArray[np.floating]
    clock: FrameTimes
    hashes: Hashes
    crops: tuple[SampledFeatures, ...] = ()
    jpegs: tuple[bytes, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Of all features and frames."""
        of_crops = sum(picture.num_bytes for picture in self.crops)
        return self.regions.nbytes + of_crops + sum(map(len, self.jpegs))

    def take(self, rows: Sequence[int]) -> SampledFeatures:
        """Some of the frames, with their own times."""
        clock = replace(self.clock, times_s=tuple(self.clock.times_s[row] for row in rows))
        crops = tuple(picture.take(rows) for picture in self.crops)
        jpegs = tuple(self.jpegs[row] for row in rows) if self.jpegs else ()
        return SampledFeatures(self.regions[rows], clock, self.hashes[rows], crops, jpegs)


class Recent(Generic[Key, Value]):
    """What was asked for last, CACHE_BYTES of it at most. Any thread may ask. num_bytes: of a
    value."""

    def __init__(self, num_bytes: Callable[[Value], int]) -> None:
        self._num_bytes, self._room, self._guard = num_bytes, CACHE_BYTES, threading.Lock()
        self._kept: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The value of a key; None where it is not kept."""
        with self._guard:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: Key, value: Value) -> Value:
        """Keep a value, in place of those that nobody asked for for longest; returns the one that
        is kept under this key."""
        with self._guard:
            if key not in self._kept:
                self._kept[key] = value
                self._room -= self._num_bytes(value)
            while self._room < 0:
                self._room += self._num_bytes(self._kept.popitem(last=False)[1])
            return self._kept.get(key, value)


Outcome = SampledFeatures | VideoError
WantedFile = tuple[FileState, bool]
"""A file as it is now, and whether its crops are asked for."""


class VideoReader:
    """Decodes and embeds files. A file that was replaced or changed since is read again. embed: [B,
    3, H, W] uint8 crops -> [B, R, D]. computing: held while the networks run on one batch, so that
    memory does not grow with the number of threads and no video keeps other requests waiting."""

    def __init__(
        self,
        embed: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
        *,
        crop_px: int,
        picture: Picture,
        sampling: SamplingConfig,
        computing: ComputeLock,
    ) -> None:
        self._embed = embed
        self._crop_px = crop_px
        self._picture = picture
        self._sampling = sampling
        self._decoding, self._computing = (
            threading.BoundedSemaphore(MAX_DECODING_REQUESTS),
            computing,
        )
        self._recent: Recent[WantedFile, SampledFeatures] = Recent(
            lambda features: features.num_bytes
        )

    def read(
        self,
        paths: Sequence[Path],
        *,
        limits: ServingConfig,
        deadline: Deadline,
        crops: bool = False,
    ) -> dict[Path, Outcome]:
        """Features of each file, or why there are none. Holds the features of all of them at once.
        crops: also of the crops of a query."""
        outcomes: dict[Path, Outcome] = {}
        states: dict[Path, WantedFile] = {}
        for path in dict.fromkeys(paths):
            try:
                state = check_file(path)
                if state.num_bytes > limits.max_bytes:
                    text = (
                        f"video: {path.name} has {state.num_bytes} bytes; "
                        f"serving.max_bytes is {limits.max_bytes}"
                    )
                    raise VideoError("too_large", text)
                states[path] = state, crops
            except VideoError as error:
                outcomes[path] = error
        outcomes |= self._known(states)
        if missing := {path: state for path, state in states.items() if path not in outcomes}:
            if self._decoding.acquire(timeout=deadline.wait_s()):
                try:
                    outcomes |= self._decode(missing, limits=limits, deadline=deadline)
                finally:
                    self._decoding.release()
            else:
                outcomes |= dict.fromkeys(missing, deadline.error())
        for path, outcome in outcomes.items():
            if isinstance(outcome, SampledFeatures) and len(outcome.regions) > limits.max_frames:
                outcomes[path] = _too_long(path, limits)
        return outcomes

    def _decode(
        self, missing: dict[Path, WantedFile], *, limits: ServingConfig, deadline: Deadline
    ) -> dict[Path, Outcome]:
        outcomes: dict[Path, Outcome] = {
            **self._known(missing)
        }  # another request may have read them meanwhile
        paths = [path for path in missing if path not in outcomes]
        sampling, num_bytes = self._sampling, sum(missing[path][0].num_bytes for path in paths)
        config = sampling.model_copy(
            update={
                # one frame more than allowed tells a video that is too long
                "max_frames": min(sampling.max_frames, limits.max_frames + 1),
                "timeout_s": min(limits.video_timeout_s, deadline.wait_s()),
                "workers": min(
                    sampling.workers, max(len(paths), 1), 1 + num_bytes // BYTES_PER_DECODER
                ),
            }
        )
        items = [(str(path), path) for path in paths]
        sampled = sample_videos(
            items, config=config, digest=False, pictures=True, left_s=deadline.wait_s
        )
        for path in paths:
            video = None if deadline.passed() else next(sampled)
            if video is None or (video.reason == "timeout" and deadline.passed()):
                outcomes[path] = deadline.error()
            elif video.reason:
                outcomes[path] = VideoError(video.reason, video.message)
            elif len(video.jpegs) > limits.max_frames:
                outcomes[path] = _too_long(path, limits)
            else:
                duration_s = None if video.probe is None else video.probe.duration_s
                clock = FrameTimes(
                    video.timestamps_s,
                    duration_s,
                    missing=video.message if video.is_partial else "",
                    clock_note="" if video.is_partial else video.message,
                )
                try:
                    found = self.features(video.jpegs, clock, deadline, crops=missing[path][1])
                except VideoError as error:
                    outcomes[path] = error
                else:
                    outcomes[path] = self._recent.keep(missing[path], found)
        return outcomes

    def features(
        self, jpegs: Sequence[bytes], clock: FrameTimes, deadline: Deadline, *, crops: bool
    ) -> SampledFeatures:
        """Features of sampled frames, T >= 1. crops: also of the crops of a query. Raises
        VideoError `timeout`."""
        parts: list[list[NDArray[np.float32]]] = []
        for start in range(0, len(jpegs), BATCH_FRAMES):
            frames = decode_jpegs(jpegs[start : start + BATCH_FRAMES])
            boxes = [WHOLE]
            if crops:
                boxes += crops_of(*frames.shape[-2:])
            parts = parts or [[] for _ in boxes]
            for part, (rows, columns) in zip(parts, boxes, strict=True):
                shown = square(frames[..., rows, columns], self._crop_px, self._picture)
                with self._computing.hold(deadline):
                    part.append(self._embed(shown))
        hashes = frame_hashes(jpegs)
        whole, *others = (SampledFeatures(np.concatenate(part), clock, hashes) for part in parts)
        return replace(whole, crops=tuple(others), jpegs=tuple(jpegs) if crops else ())

    def _known(self, states: dict[Path, WantedFile]) -> dict[Path, SampledFeatures]:
        found = {path: self._recent.get(state) for path, state in states.items()}
        return {path: features for path, features in found.items() if features is not None}


@dataclass(kw_only=True, eq=False)
class RequestVideos(contextlib.ExitStack):
    """Reads videos by name, a group ahead, in the order of `names`, which are different. A context:
    it owns downloads. crops: also of the crops of a query."""

    reader: VideoReader
    names: Sequence[str]
    limits: ServingConfig
    access: Access
    deadline: Deadline
    crops: bool

    def __post_init__(self) -> None:
        super().__init__()
        folder = tempfile.TemporaryDirectory(prefix="hapvr-request-", ignore_cleanup_errors=True)
        self._folder, self._held = Path(self.enter_context(folder)), dict[str, Outcome]()
        self._downloader: Downloader | None = None

    def get(self, name: str) -> SampledFeatures:
        """Features of one of the names. Raises VideoError."""
        if name not in self._held:
            # what failed is not tried again, and the group before makes room
            self._held = {
                held: outcome
                for held, outcome in self._held.items()
                if isinstance(outcome, VideoError)
            }
            start, paths = self.names.index(name), dict[str, Path]()
            for one in self.names[start : start + GROUP]:
                try:
                    if one not in self._held:
                        paths[one] = self._local(one)
                except VideoError as error:
                    self._held[one] = error
            outcomes = self.reader.read(
                [*paths.values()], limits=self.limits, deadline=self.deadline, crops=self.crops
            )
            for one, path in paths.items():
                self._held[one] = outcomes[path]
                if path.is_relative_to(self._folder):
                    path.unlink(missing_ok=True)
        found = self._held[name]
        if isinstance(found, VideoError):
            raise VideoError(found.reason, str(found))
        return found

    def _local(self, name: str) -> Path:
        if "://" not in name:
            return self.access.local_path(name)
        self.access.check_url(name)
        if not is_installed("yt_dlp"):
            raise VideoError(
                "unsupported",
                f"video: {name}: URLs need yt-dlp; {FULL_HINT}, or fetch the file yourself",
            )
        from hapvr.video.download import (
            Downloader,
        )  # yt-dlp is loaded only where a URL is asked for

        self.deadline.check()
        if self._downloader is None:
            config = DownloadConfig(max_bytes=self.limits.max_bytes, retries=1, workers=1)
            self._downloader = self.enter_context(Downloader(config))
        result = self._downloader.download(
            ManifestEntry(video_id=name, uri=name),
            folder=self._folder,
            timeout_s=min(self.limits.video_timeout_s, self.deadline.wait_s()),
        )
        if result.path is None:
            raise VideoError(result.reason or result.status, result.message)
        return result.path


def _too_long(path: Path, limits: ServingConfig) -> VideoError:
    return VideoError(
        "too_long",
        f"video: {path.name} has more than {limits.max_frames} sampled frames; see "
        "serving.max_frames",
    )
