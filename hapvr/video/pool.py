"""Sampling and inspecting videos in worker processes: a bad file costs one row and no more."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pebble import ProcessFuture, ProcessPool
from PIL import Image

from hapvr.config import SamplingConfig
from hapvr.errors import VideoError
from hapvr.video.container import VideoProbe, check_file
from hapvr.video.decode import Decoder, probe_video, sample_video
from hapvr.video.workers import LOOKAHEAD, in_workers, open_pool, outcome


@dataclass(frozen=True)
class SampledVideo:
    """One video's sampled frames, or the reason why there are none.

    jpegs: one per sampling time in timestamps_s; width_px, height_px: their size. reason: "" if all is well, else a
    code of VideoError. message: what happened, also for a video of which only a part could be decoded (reason "").
    """

    video_id: str
    probe: VideoProbe | None
    jpegs: tuple[bytes, ...]
    timestamps_s: tuple[float, ...]
    width_px: int
    height_px: int
    decoder: str
    reason: str
    message: str


@dataclass(frozen=True)
class InspectedVideo:
    """Facts of one file: num_bytes 0 and sha256 "" if it cannot be read; probe None and a reason if it is no video."""

    video_id: str
    path: Path
    num_bytes: int
    sha256: str
    probe: VideoProbe | None
    reason: str
    message: str


def sample_videos(items: Iterable[tuple[str, Path]], *, config: SamplingConfig) -> Iterator[SampledVideo]:
    """Sample (video id, file) pairs in worker processes; one result per pair, in their order.

    Frames are JPEG (RGB, `config.jpeg_quality`). A video on which decord crashes or hangs is tried once more with PyAV
    alone. Never raises for a video's sake: the result has the reason.
    """
    first = functools.partial(_sample_one, config=config, decoder="auto")
    second = functools.partial(_sample_one, config=config, decoder="pyav")
    for (video_id, _), result in in_workers(first, items, config=config, retry=second):
        yield result if isinstance(result, SampledVideo) else _failed_sample(video_id, result)


class VideoSampler:
    """Samples the videos of a fixed list in worker processes as they are asked for, the next ones of the list ahead.

    Results equal those of `sample_videos`. Memory holds the result last asked for and LOOKAHEAD more per worker.
    """

    def __init__(self, items: Mapping[str, Path], *, config: SamplingConfig) -> None:
        self._items = dict(items)
        self._order = {video_id: position for position, video_id in enumerate(self._items)}
        self._config = config
        self._ahead: dict[str, ProcessFuture[Any]] = {}
        self._last: SampledVideo | None = None
        self._stack = contextlib.ExitStack()
        self._pool: ProcessPool | None = None

    def __enter__(self) -> VideoSampler:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sample(self, video_id: str, *, ahead: bool = True) -> SampledVideo:
        """One video of the list. ahead: False for one out of turn, so that those after it are not begun."""
        if self._last is not None and self._last.video_id == video_id:
            return self._last
        pool = self._pool = self._pool or self._stack.enter_context(open_pool(self._config))
        start = self._order[video_id]
        count = LOOKAHEAD * self._config.workers if ahead else 1
        if ahead:
            self._ahead = {other: future for other, future in self._ahead.items() if self._order[other] >= start}
        for other in itertools.islice(self._items, start, start + count):
            if other not in self._ahead:
                self._ahead[other] = self._schedule(pool, other)
        result = outcome(
            pool,
            (video_id, self._items[video_id]),
            self._ahead.pop(video_id),
            config=self._config,
            retry=functools.partial(_sample_one, config=self._config, decoder="pyav"),
        )
        sampled = result if isinstance(result, SampledVideo) else _failed_sample(video_id, result)
        if ahead:
            self._last = sampled
        return sampled

    def _schedule(self, pool: ProcessPool, video_id: str) -> ProcessFuture[Any]:
        function = functools.partial(_sample_one, config=self._config, decoder="auto")
        return pool.schedule(function, args=((video_id, self._items[video_id]),), timeout=self._config.timeout_s)


def inspect_videos(items: Iterable[tuple[str, Path]], *, config: SamplingConfig) -> Iterator[InspectedVideo]:
    """Size, digest and probe of (video id, file) pairs, in their order; the first frame of each is decoded."""
    for (video_id, path), result in in_workers(_inspect_one, items, config=config):
        if isinstance(result, InspectedVideo):
            yield result
        else:
            num_bytes = path.stat().st_size if path.is_file() else 0
            yield InspectedVideo(video_id, path, num_bytes, "", None, result.reason, str(result))


def _sample_one(item: tuple[str, Path], *, config: SamplingConfig, decoder: Decoder) -> SampledVideo:
    video_id, path = item
    try:
        sample = sample_video(
            path,
            fps=config.fps,
            short_side_px=config.short_side_px,
            keep=functools.partial(encode_jpeg, quality=config.jpeg_quality),
            max_frames=config.max_frames,
            decoder=decoder,
        )
    except VideoError as error:
        return _failed_sample(video_id, error)
    return SampledVideo(
        video_id=video_id,
        probe=sample.probe,
        jpegs=sample.kept,
        timestamps_s=sample.timestamps_s,
        width_px=sample.width_px,
        height_px=sample.height_px,
        decoder=sample.decoder,
        reason="",
        message=sample.warning,
    )


def _failed_sample(video_id: str, error: VideoError) -> SampledVideo:
    return SampledVideo(
        video_id=video_id,
        probe=None,
        jpegs=(),
        timestamps_s=(),
        width_px=0,
        height_px=0,
        decoder="",
        reason=error.reason,
        message=str(error),
    )


def _inspect_one(item: tuple[str, Path]) -> InspectedVideo:
    video_id, path = item
    num_bytes, sha256 = 0, ""
    try:
        check_file(path)
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            num_bytes = file.tell()
        probe = probe_video(path)
    except VideoError as error:
        return InspectedVideo(video_id, path, num_bytes, sha256, None, error.reason, str(error))
    return InspectedVideo(video_id, path, num_bytes, sha256, probe, "", "")


def encode_jpeg(frame: NDArray[np.uint8], *, quality: int) -> bytes:
    """One frame [H, W, 3] uint8 RGB as JPEG without chroma subsampling; equal pixels give equal bytes."""
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="JPEG", quality=quality, subsampling=0)
    return buffer.getvalue()
