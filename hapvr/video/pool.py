"""Decoding in worker processes that are killed when they hang, crash or grow: a bad file costs one row and no more."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import multiprocessing
import os
import resource
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pebble import ProcessFuture, ProcessPool
from PIL import Image

from hapvr.config import SamplingConfig
from hapvr.errors import VideoError
from hapvr.video.container import VideoProbe, check_file
from hapvr.video.decode import Decoder, probe_video, sample_video
from hapvr.video.processes import CleanContext

Item = TypeVar("Item")
Result = TypeVar("Result")

LOOKAHEAD = 3
"""Results held per worker while an earlier one is awaited; this bounds memory."""

TASKS_PER_WORKER = 200
"""A worker is replaced after so many videos, which returns whatever the decoders leaked."""


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


def inspect_videos(items: Iterable[tuple[str, Path]], *, config: SamplingConfig) -> Iterator[InspectedVideo]:
    """Size, digest and probe of (video id, file) pairs, in their order; the first frame of each is decoded."""
    for (video_id, path), result in in_workers(_inspect_one, items, config=config):
        if isinstance(result, InspectedVideo):
            yield result
        else:
            num_bytes = path.stat().st_size if path.is_file() else 0
            yield InspectedVideo(video_id, path, num_bytes, "", None, result.reason, str(result))


def in_workers(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    config: SamplingConfig,
    retry: Callable[[Item], Result] | None = None,
) -> Iterator[tuple[Item, Result | VideoError]]:
    """(item, function(item)) for each item, computed by `config.workers` processes, in order; LOOKAHEAD bounds memory.

    A worker busy with an item for more than `config.timeout_s` is killed and the item's result is a VideoError with
    reason timeout; one that dies, exceeds `config.max_memory_bytes` or raises gives reason crashed. With `retry`, such
    an item is first tried once more by that function.
    """
    iterator = iter(items)
    first = list(itertools.islice(iterator, 1))
    if not first:
        return
    with ProcessPool(
        max_workers=config.workers,
        max_tasks=TASKS_PER_WORKER,
        initializer=_prepare_worker,
        initargs=(config.max_memory_bytes,),
        context=CleanContext(),
    ) as pool:
        waiting = deque[tuple[Item, ProcessFuture[Any]]]()
        try:
            for item in itertools.chain(first, iterator):
                waiting.append((item, pool.schedule(function, args=(item,), timeout=config.timeout_s)))
                if len(waiting) >= LOOKAHEAD * config.workers:
                    item, future = waiting.popleft()
                    yield item, _outcome(pool, item, future, config=config, retry=retry)
            while waiting:
                item, future = waiting.popleft()
                yield item, _outcome(pool, item, future, config=config, retry=retry)
        finally:
            pool.stop()  # type: ignore[no-untyped-call]


def _outcome(
    pool: ProcessPool,
    item: Item,
    future: ProcessFuture[Any],
    *,
    config: SamplingConfig,
    retry: Callable[[Item], Result] | None,
) -> Any:
    try:
        return future.result()
    except FutureTimeoutError:
        failure = VideoError("timeout", f"video: not done after {config.timeout_s:g} s; see sampling.timeout_s")
    except Exception as error:  # whatever a damaged file provokes in a decoder costs this item only
        failure = VideoError(
            "crashed",
            f"video: {type(error).__name__}: {error}; the file is damaged or needs more than sampling.max_memory_bytes",
        )
    if retry is None:
        return failure
    return _outcome(pool, item, pool.schedule(retry, args=(item,), timeout=config.timeout_s), config=config, retry=None)


def _prepare_worker(max_memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (max_memory_bytes, max_memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """A worker stuck in a decoder would outlive a killed parent, since it never gets to read its closed pipe."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)


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
