"""Video files and pictures as region features, within limits.

Features are cached; threads may share a reader.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hapvr.errors import VideoError
from hapvr.networks.settings import BATCH_FRAMES
from hapvr.scorer.access import ComputeLock, Deadline
from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.query_views import WHOLE, crops_of
from hapvr.scorer.segments import FrameTimes
from hapvr.settings import ServingConfig
from hapvr.video.decoded import DecodedFrames
from hapvr.video.frames import Hashes, square
from hapvr.video.pool import SampledVideo, sample_videos
from hapvr.video.probe import FileState, check_file
from hapvr.video.settings import Picture, SamplingConfig

MAX_DECODING_REQUESTS = 2
"""How many requests decode at the same time; others wait."""

CACHE_BYTES = 256 * 2**20
"""Memory for the features of the last queries, and for the embeddings of the last videos that were
compared."""

Key = TypeVar("Key")
Value = TypeVar("Value")

BYTES_PER_DECODER = 8 * 2**20
"""Bytes of files for which one more decoding process is worth its start, which takes 0.3 to 0.5
seconds of processor time."""


@dataclass(frozen=True, eq=False)
class SampledFeatures:
    """Features of the sampled frames of one video."""

    regions: NDArray[np.floating]
    """[T, R, D] of a floating dtype, with their frame extras where the network reads them."""
    clock: FrameTimes
    """Their times."""
    hashes: Hashes
    """[T], see `picture_hash`."""
    crops: tuple[SampledFeatures, ...] = ()
    """Features of the same frames for each crop of a query, see `hapvr.scorer.query_views`."""
    jpegs: tuple[bytes, ...] = ()
    """The frames themselves, of a query."""

    @property
    def num_bytes(self) -> int:
        """Of all features and frames."""
        of_crops = sum(picture.num_bytes for picture in self.crops)
        return self.regions.nbytes + of_crops + sum(map(len, self.jpegs))

    def embedded(self, embedding: Any) -> EmbeddedVideo:
        """The same frames as a network embeds them. embedding: see `EmbeddedVideo.regions`."""
        return EmbeddedVideo(embedding, self.clock, self.hashes)

    def take(self, rows: Sequence[int]) -> SampledFeatures:
        """Some of the frames, with their own times."""
        clock = replace(self.clock, times_s=tuple(self.clock.times_s[row] for row in rows))
        crops = tuple(picture.take(rows) for picture in self.crops)
        jpegs = tuple(self.jpegs[row] for row in rows) if self.jpegs else ()
        return replace(
            self,
            regions=self.regions[rows],
            clock=clock,
            hashes=self.hashes[rows],
            crops=crops,
            jpegs=jpegs,
        )


@dataclass(frozen=True, kw_only=True)
class PictureSettings:
    """How the networks see a video."""

    sampling: SamplingConfig
    crop_px: int
    """Side of the pictures."""
    picture: Picture
    """Which part of a frame they see."""


class Recent(Generic[Key, Value]):
    """The values used last, at most CACHE_BYTES of them. Threads may share it."""

    def __init__(self, num_bytes: Callable[[Value], int]) -> None:
        """num_bytes: gives the size of a value."""
        self._num_bytes = num_bytes
        self._room = CACHE_BYTES
        self._guard = threading.Lock()
        self._kept: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The value of a key; None if it is not kept."""
        with self._guard:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: Key, value: Value) -> Value:
        """Keep a value, in place of those unused for longest; returns the value that is kept under
        this key."""
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
    """Decodes and embeds files. A file that was replaced or has changed is read again."""

    def __init__(
        self,
        embed: Callable[[NDArray[np.uint8]], NDArray[np.float32]],
        *,
        pictures: PictureSettings,
        computing: ComputeLock,
    ) -> None:
        """embed: [B, 3, H, W] uint8 crops -> [B, R, D].
        computing: held while the networks run on one batch, so that memory does not grow with the
        number of threads and no video keeps other requests waiting."""
        self._embed = embed
        self._pictures = pictures
        self._computing = computing
        self._decoding = threading.BoundedSemaphore(MAX_DECODING_REQUESTS)
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
        """The features of each file, or why there are none. The features of all files are in memory
        at once.

        crops: also of the crops of a query."""
        outcomes: dict[Path, Outcome] = {}
        states: dict[Path, WantedFile] = {}
        for path in dict.fromkeys(paths):
            try:
                states[path] = (_state_of(path, limits), crops)
            except VideoError as error:
                outcomes[path] = error

        outcomes |= self._cached(states)

        missing = {path: state for path, state in states.items() if path not in outcomes}
        if missing and self._decoding.acquire(timeout=deadline.wait_s()):
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
        # Another request may have read them meanwhile.
        outcomes: dict[Path, Outcome] = dict(self._cached(missing))
        paths = [path for path in missing if path not in outcomes]
        num_bytes = sum(missing[path][0].num_bytes for path in paths)
        sampled = sample_videos(
            [(str(path), path) for path in paths],
            config=self._sampling_within(limits, deadline, len(paths), num_bytes),
            digest=False,
            pictures=True,
            left_s=deadline.wait_s,
        )
        with closing(sampled):  # errors keep it alive with their tracebacks, and so its workers
            for path in paths:
                video = None if deadline.passed() else next(sampled)
                if video is None or (video.reason == "timeout" and deadline.passed()):
                    outcomes[path] = deadline.error()
                    continue

                try:
                    features = self._features_of(
                        path, video, limits, deadline, crops=missing[path][1]
                    )
                except VideoError as error:
                    outcomes[path] = error
                else:
                    outcomes[path] = self._recent.keep(missing[path], features)

        return outcomes

    def _sampling_within(
        self, limits: ServingConfig, deadline: Deadline, num_files: int, num_bytes: int
    ) -> SamplingConfig:
        """The sampling of some files of a request.

        num_bytes: of all files."""
        sampling = self._pictures.sampling
        worthwhile = 1 + num_bytes // BYTES_PER_DECODER
        return sampling.model_copy(
            update={
                "mode": "thorough",
                # one frame more than allowed tells a video that is too long
                "max_frames": min(sampling.max_frames, limits.max_frames + 1),
                "timeout_s": min(limits.video_timeout_s, deadline.wait_s()),
                "workers": min(sampling.workers, max(num_files, 1), worthwhile),
            }
        )

    def _features_of(
        self,
        path: Path,
        video: SampledVideo,
        limits: ServingConfig,
        deadline: Deadline,
        *,
        crops: bool,
    ) -> SampledFeatures:
        """Features of a decoded file. Raises VideoError for one that cannot be used."""
        if video.reason:
            raise VideoError(video.reason, video.message)
        if len(video.jpegs) > limits.max_frames:
            raise _too_long(path, limits)
        clock = FrameTimes(
            video.timestamps_s,
            None if video.probe is None else video.probe.duration_s,
            missing=video.message if video.is_partial else "",
            clock_note="" if video.is_partial else video.message,
        )
        return self.features(video.jpegs, clock, deadline, crops=crops)

    def features(
        self, jpegs: Sequence[bytes], clock: FrameTimes, deadline: Deadline, *, crops: bool
    ) -> SampledFeatures:
        """Features of sampled frames, T >= 1.

        crops: also of the crops of a query.

        Raises:
            VideoError: `timeout`."""
        parts: list[list[NDArray[np.float32]]] = []
        hashes: list[Hashes] = []
        decoded = DecodedFrames(jpegs, self._pictures.picture)
        for start in range(0, len(decoded), BATCH_FRAMES):
            frames, of_frames = decoded.part(start, start + BATCH_FRAMES)
            hashes.append(of_frames)
            boxes = [WHOLE]
            if crops:
                boxes += crops_of(*frames.shape[-2:])
            parts = parts or [[] for _ in boxes]
            for part, (rows, columns) in zip(parts, boxes, strict=True):
                shown = square(
                    frames[..., rows, columns], self._pictures.crop_px, self._pictures.picture
                )
                with self._computing.hold(deadline):
                    part.append(self._embed(shown))

        joined = np.concatenate(hashes)
        views = [SampledFeatures(np.concatenate(part), clock, joined) for part in parts]
        kept = tuple(jpegs) if crops else ()
        return replace(views[0], crops=tuple(views[1:]), jpegs=kept)

    def _cached(self, states: dict[Path, WantedFile]) -> dict[Path, SampledFeatures]:
        cached = {path: self._recent.get(state) for path, state in states.items()}
        return {path: features for path, features in cached.items() if features is not None}


def _state_of(path: Path, limits: ServingConfig) -> FileState:
    """A file as it is now. Raises VideoError for one that cannot be used, or is too large."""
    state = check_file(path)
    if state.num_bytes > limits.max_bytes:
        raise VideoError(
            "too_large",
            f"video: {path.name} has {state.num_bytes} bytes; "
            f"serving.max_bytes is {limits.max_bytes}",
        )

    return state


def _too_long(path: Path, limits: ServingConfig) -> VideoError:
    return VideoError(
        "too_long",
        f"video: {path.name} has more than {limits.max_frames} sampled frames; see "
        "serving.max_frames",
    )
