"""Sampling and inspecting videos in worker processes.

A worker that hangs, crashes or takes too much memory is killed. A bad file therefore costs one row and no more.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any, TypeVar

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from hapvr.errors import VideoError
from hapvr.files import file_sha256
from hapvr.video.container import VideoProbe, check_file, probe_video
from hapvr.video.decode import Decoder, sample_video
from hapvr.video.frames import encode_jpeg
from hapvr.video.settings import SamplingConfig

Item = TypeVar("Item")
Result = TypeVar("Result")

LOOKAHEAD = 3
"""Results held per worker while an earlier one is awaited. This bounds memory."""

TASKS_PER_WORKER = 200
"""A worker is replaced after this many videos, which returns the memory that decoders leaked."""

killed_workers = Counter[str]()
"""Workers of this process that were killed or died, by reason: `timeout` or `crashed`."""

RETRYABLE = frozenset({"timeout", "crashed"})
"""Reasons of the machine rather than of the file."""

PARENT_CHECK_S = 0.5
"""Seconds between two looks of a worker at whether its parent is alive."""


@dataclass(frozen=True)
class SampledVideo:
    """One video's sampled frames, or the reason why there are none.

    jpegs: one per sampling time in timestamps_s. width_px, height_px: their size. reason: "" if frames were sampled,
    else a code of VideoError. message: what happened; also set if only a part of the video could be decoded (reason "").
    file_sha256: digest of the file that was decoded, "" if it was not asked for or cannot be read.
    """

    video_id: str
    probe: VideoProbe | None = None
    jpegs: tuple[bytes, ...] = ()
    timestamps_s: tuple[float, ...] = ()
    width_px: int = 0
    height_px: int = 0
    decoder: str = ""
    reason: str = ""
    message: str = ""
    file_sha256: str = ""


@dataclass(frozen=True)
class InspectedVideo:
    """Metadata of one file. num_bytes is 0 and sha256 "" if it cannot be read; probe is None, with a reason, if it is no
    video."""

    video_id: str
    path: Path
    num_bytes: int = 0
    sha256: str = ""
    probe: VideoProbe | None = None
    reason: str = ""
    message: str = ""


def sample_videos(
    items: Iterable[tuple[str, Path]],
    *,
    config: SamplingConfig,
    digest: bool = False,
    left_s: Callable[[], float] | None = None,
) -> Iterator[SampledVideo]:
    """Sample (video id, file) pairs in worker processes; one result per pair, in their order.

    Frames are JPEG (RGB). A video on which decord crashes or hangs is tried once more with PyAV alone. A video that fails
    raises nothing: its result has the reason. digest: read each file once more for its file_sha256; a file that changes
    while it is decoded then fails with reason changed_file. left_s: see `in_workers`.
    """
    first = functools.partial(_sample, config=config, digest=digest)
    second = functools.partial(_sample, config=config, digest=digest, decoder="pyav")
    for (video_id, _), result in in_workers(first, items, config=config, retry=second, left_s=left_s):
        yield _sampled(video_id, result)


def inspect_videos(items: Iterable[tuple[str, Path]], *, config: SamplingConfig) -> Iterator[InspectedVideo]:
    """Yield size, digest and probe of (video id, file) pairs, in their order. The first frame of each is decoded."""
    for (video_id, path), result in in_workers(_inspect, items, config=config):
        if isinstance(result, VideoError):
            num_bytes = path.stat().st_size if path.is_file() else 0
            result = InspectedVideo(video_id, path, num_bytes, reason=result.reason, message=str(result))
        yield result


def _sampled(video_id: str, result: SampledVideo | VideoError) -> SampledVideo:
    if isinstance(result, SampledVideo):
        return result
    return SampledVideo(video_id, reason=result.reason, message=str(result))


def _sample(
    item: tuple[str, Path], *, config: SamplingConfig, decoder: Decoder = "auto", digest: bool = False
) -> SampledVideo:
    video_id, path = item
    before = _file_version(path)
    try:
        sample = sample_video(
            path,
            fps=config.fps,
            short_side_px=config.short_side_px,
            keep=encode_jpeg,
            max_frames=config.max_frames,
            decoder=decoder,
        )
        sampled = SampledVideo(
            video_id,
            sample.probe,
            tuple(sample.kept),
            sample.timestamps_s,
            *(sample.size_px or (0, 0)),
            decoder=sample.decoder,
            message=sample.warning,
        )
    except VideoError as error:
        sampled = _sampled(video_id, error)
    if not digest or before is None:
        return sampled
    with contextlib.suppress(OSError):
        sampled = replace(sampled, file_sha256=file_sha256(path))
    if _file_version(path) != before:
        changed = VideoError("changed_file", f"video: {path.name} changed while it was read; run the step again")
        sampled = replace(_sampled(video_id, changed), file_sha256=sampled.file_sha256)
    return sampled


def _file_version(path: Path) -> tuple[int, int, int, int] | None:
    """What changes when a file is written or replaced; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _inspect(item: tuple[str, Path]) -> InspectedVideo:
    found = InspectedVideo(*item)
    try:
        check_file(found.path)
        found = replace(found, sha256=file_sha256(found.path), num_bytes=found.path.stat().st_size)
        return replace(found, probe=probe_video(found.path))
    except VideoError as error:
        return replace(found, reason=error.reason, message=str(error))


def in_workers(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    config: SamplingConfig,
    retry: Callable[[Item], Result] | None = None,
    left_s: Callable[[], float] | None = None,
) -> Iterator[tuple[Item, Result | VideoError]]:
    """Compute function(item) for each item in at most `config.workers` processes; yield (item, result) in the items' order.

    A worker that needs more than `config.timeout_s` for an item is killed, and the item's result is a VideoError with
    reason timeout. If the worker dies, exceeds `config.max_memory_bytes` or raises, the reason is crashed. With `retry`,
    such an item is first tried once more by that function. A VideoError that the function raises is the item's result.
    Memory holds at most LOOKAHEAD results per worker.

    left_s: the seconds, above 0, that may still be waited for all items together; when they are over, the reason is
    timeout. `config.timeout_s` alone does not bound a call: it begins again for each item, and after its worker has started.
    """
    iterator = iter(items)
    first = list(itertools.islice(iterator, config.workers))
    if not first:
        return
    with open_pool(workers=len(first), limits={resource.RLIMIT_AS: config.max_memory_bytes}) as pool:

        def outcome(item: Item, future: ProcessFuture[Any]) -> tuple[Item, Result | VideoError]:
            found = _outcome(future, config=config, left_s=left_s)
            if retry is not None and isinstance(found, VideoError) and found.reason in RETRYABLE:
                again = pool.schedule(retry, args=(item,), timeout=config.timeout_s)
                found = _outcome(again, config=config, left_s=left_s)
            return item, found

        waiting = deque[tuple[Item, ProcessFuture[Any]]]()
        for item in itertools.chain(first, iterator):
            waiting.append((item, pool.schedule(function, args=(item,), timeout=config.timeout_s)))
            if len(waiting) >= LOOKAHEAD * config.workers:
                yield outcome(*waiting.popleft())
        while waiting:
            yield outcome(*waiting.popleft())


@contextlib.contextmanager
def open_pool(
    *, workers: int, limits: Mapping[int, int], prepare: Callable[[], None] | None = None
) -> Iterator[ProcessPool]:
    """Worker processes with limits, which end with this block and with this process; they start when work comes.

    limits: kind of resource (resource.RLIMIT_...) -> most that a worker may take of it. prepare: called first in each
    worker. Workers do not import the program's main module: a script that decodes videos needs no `__main__` guard, and
    a program that loads networks does not load them in each worker.
    """
    with ProcessPool(
        max_workers=workers,
        max_tasks=TASKS_PER_WORKER,
        initializer=_prepare_worker,
        initargs=({**limits, resource.RLIMIT_CORE: 0}, os.getpid(), prepare),
        context=_WorkerContext(),
    ) as pool:
        try:
            yield pool
        finally:
            pool.stop()  # type: ignore[no-untyped-call]


class _WorkerProcess(SpawnProcess):
    """A fresh Python that does not run the program's main module again."""

    _starting = threading.Lock()

    def start(self) -> None:
        main = sys.modules["__main__"]
        with _WorkerProcess._starting:
            # what `multiprocessing` tells a new process to run
            hidden = {name: main.__dict__.pop(name, None) for name in ("__spec__", "__file__")}
            main.__spec__ = None
            try:
                super().start()
            finally:
                main.__dict__.update({name: value for name, value in hidden.items() if name == "__spec__" or value})


class _WorkerContext(SpawnContext):
    """Starts `_WorkerProcess` and keeps its locks until the last process has ended.

    A pool gives up its locks before it ends its processes; one that was still starting would not find them and complain.
    """

    Process = _WorkerProcess

    def __init__(self) -> None:
        self._locks: list[Any] = []

    def RLock(self) -> Any:
        lock = super().RLock()
        self._locks.append(lock)
        return lock


def _outcome(
    future: ProcessFuture[Any], *, config: SamplingConfig, left_s: Callable[[], float] | None
) -> Any | VideoError:
    """The result of a call that was scheduled, or why there is none."""
    try:
        return future.result(None if left_s is None else left_s())
    except FutureTimeoutError:
        killed_workers["timeout"] += 1
        return VideoError("timeout", f"video: not done after {config.timeout_s:g} s; see sampling.timeout_s")
    except VideoError as error:
        return error
    except Exception as error:  # whatever a damaged file provokes in a decoder costs this item only
        killed_workers["crashed"] += isinstance(error, ProcessExpired)
        return VideoError(
            "crashed",
            f"video: {type(error).__name__}: {error}; the file is damaged or needs more than sampling.max_memory_bytes",
        )


def _prepare_worker(limits: Mapping[int, int], parent_pid: int, prepare: Callable[[], None] | None) -> None:
    sys.dont_write_bytecode = True  # a limit of file size would cut it, and other processes would read what is left
    for kind, wanted in limits.items():
        given = [value for value in resource.getrlimit(kind) if value != resource.RLIM_INFINITY]
        resource.setrlimit(kind, (min([wanted, *given]), min([wanted, *given])))
    threading.Thread(target=_die_with_parent, args=(parent_pid,), daemon=True).start()
    if prepare is not None:
        prepare()


def _die_with_parent(parent_pid: int) -> None:
    """Kill this worker when its parent is gone: one that is stuck in a decoder never reads its closed pipe."""
    while os.getppid() == parent_pid:
        time.sleep(PARENT_CHECK_S)
    os.kill(os.getpid(), signal.SIGKILL)
