"""Sampling and inspecting videos in worker processes.

A worker that makes no progress, crashes or takes too much memory is killed. So a bad file costs one
row and no more, and a good file may take as long as it needs.
"""

import functools
import itertools
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import av
import av.subtitles.stream  # PyAV would load it late, again in each process that decodes one file
from pebble import ProcessExpired, ProcessFuture
from pydantic import ConfigDict, TypeAdapter

from hapvr import __version__
from hapvr.errors import VideoError
from hapvr.files import file_sha256
from hapvr.processors import processors
from hapvr.video.confinement import missing_protection
from hapvr.video.decode import probe_video
from hapvr.video.frames import encode_jpeg
from hapvr.video.heartbeat import (
    SILENT_EXIT,
    BeatReader,
    FileBeats,
    beat,
    ended_when_silent,
)
from hapvr.video.kept_workers import WorkerKind, borrowed_workers
from hapvr.video.moving_pictures import is_moving_picture
from hapvr.video.probe import VideoProbe, check_file
from hapvr.video.sampling import Reading, sample_frames
from hapvr.video.sandbox import call_confined, report
from hapvr.video.settings import SamplingConfig, SamplingMode
from hapvr.video.sources import is_picture
from hapvr.video.stills import read_picture

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_THREADS = 8
"""The most threads of one decoder. Each holds a picture of its own."""
LOOK_EVERY_S = 0.5
"""How often the reports of workers are passed on while a result is awaited."""
LOOKAHEAD = 3
"""Results held per worker while an earlier one is awaited, which limits memory."""

killed_workers = Counter[str]()
"""Workers of this process that were killed or died, by reason: `timeout` or `crashed`."""

RETRYABLE = frozenset({"timeout", "crashed"})
"""Reasons that are due to the machine rather than to the file."""


def reader_state(config: SamplingConfig) -> str:
    """What may make another try of a failed file end differently: versions and limits."""
    library = ".".join(map(str, av.library_versions["libavcodec"]))
    limits = f"{config.timeout_s:g} {config.max_memory_bytes} {config.archive_codecs}"
    return f"{__version__} {library} {limits}"


@dataclass(frozen=True)
class SampledVideo:
    """The sampled frames of one video, or the reason why there are none."""

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    video_id: str = ""
    path: Path = Path()
    probe: VideoProbe | None = None
    """None where there is a reason"""
    jpegs: tuple[bytes, ...] = ()
    """one per time in timestamps_s"""
    timestamps_s: tuple[float, ...] = ()
    """in seconds from the file's start"""
    reason: str = ""
    """\"\" if frames were decoded, else a code of VideoError"""
    message: str = ""
    """what happened; with reason \"\" what is missing of the video, or wrong with its clock"""
    is_partial: bool = False
    """frames were decoded, but something is missing"""
    num_bytes: int = 0
    """of the file, 0 if it cannot be read"""
    file_sha256: str = ""
    """digest of the file that was decoded, \"\" if it was not asked for or cannot be read"""
    mode: SamplingMode = "thorough"
    """how its frames were sampled"""


_ANSWER = TypeAdapter(SampledVideo)
"""The answer of a confined process about a file: it may be a lie, but it is not a pickle."""


def sample_videos(
    items: Iterable[tuple[str, Path]],
    *,
    config: SamplingConfig,
    frames: bool = True,
    digest: bool = True,
    pictures: bool = False,
    left_s: Callable[[], float] | None = None,
    doing: Callable[[str], None] | None = None,
) -> Generator[SampledVideo, None, None]:
    """Sample (video id, file) pairs in worker processes; one result per pair, in their order.

    Frames are JPEG (RGB). A video that fails raises nothing: its result has the reason.

    frames: False decodes only the first frame and keeps none
    digest: read each file once more for its file_sha256; a file that changes while it is decoded
        then fails with reason changed_file
    pictures: a file that has the name of a still picture is a video of one frame
    left_s, doing: see `in_workers`
    """
    if missing := missing_protection():
        warnings.warn(
            f"video: a decoder that a hostile file takes over is not confined: no {missing}"
        )

    iterator = iter(items)
    first = list(itertools.islice(iterator, config.workers))
    decode = functools.partial(
        _decode,
        sampling=config,
        frames=frames,
        digest=digest,
        pictures=pictures,
        threads=_threads_each(len(first)),
    )
    every = itertools.chain(first, iterator)
    for (video_id, path), result in in_workers(
        decode, every, config=config, left_s=left_s, doing=doing
    ):
        if isinstance(result, VideoError):
            result = SampledVideo(video_id, path, reason=result.reason, message=str(result))
        yield result


def _threads_each(num_files: int) -> int:
    """The number of threads of each decoder, so that no core is idle where few files are decoded at
    once."""
    return max(1, min(processors() // max(num_files, 1), MAX_THREADS))


def _decode(
    item: tuple[str, Path],
    *,
    sampling: SamplingConfig,
    frames: bool,
    digest: bool,
    pictures: bool,
    threads: int,
) -> SampledVideo:
    """frames: False decodes the first one alone."""
    video_id, path = item
    before = check_file(path)
    is_still = pictures and is_picture(path) and not is_moving_picture(path)
    answer = functools.partial(_answer, path, sampling, frames, is_still, threads)

    def reading(num_bytes: int) -> None:
        beat(f"{path.name}: reading, {num_bytes / before.num_bytes:.0%}")

    # first: decoders take what cannot be read for the end of the file
    sha256 = file_sha256(path, reading) if digest else ""
    decoding = FileBeats(path.name, "decoding")
    video = _ANSWER.validate_json(call_confined(answer, readable=path, alive=decoding))
    if len(video.jpegs) != len(video.timestamps_s):
        raise ValueError(f"{len(video.jpegs)} frames at {len(video.timestamps_s)} times")
    if digest and check_file(path) != before:
        video = SampledVideo(
            reason="changed_file",
            message=f"video: {path.name} changed while it was read; run the step again",
        )

    return replace(
        video, video_id=video_id, path=path, num_bytes=before.num_bytes, file_sha256=sha256
    )


def _answer(
    path: Path, sampling: SamplingConfig, frames: bool, picture: bool, threads: int
) -> bytes:
    """Runs in the confined process."""
    try:
        if not frames:
            probe = probe_video(path, archive_codecs=sampling.archive_codecs)
            video = SampledVideo(probe=probe)
        elif picture:
            jpeg = encode_jpeg(read_picture(path, short_side_px=sampling.short_side_px))
            video = SampledVideo(jpegs=(jpeg,), timestamps_s=(0.0,))
        else:
            video = _sampled(path, sampling, threads)
    except VideoError as error:
        video = SampledVideo(reason=error.reason, message=str(error))

    # names of files need not be UTF-8
    return _ANSWER.dump_json(
        replace(video, message=video.message.encode(errors="backslashreplace").decode())
    )


def _sampled(path: Path, sampling: SamplingConfig, threads: int) -> SampledVideo:
    samples = sample_frames(
        path,
        fps=sampling.fps,
        short_side_px=sampling.short_side_px,
        max_frames=sampling.max_frames,
        keep=encode_jpeg,
        mode=sampling.mode,
        reading=Reading(threads=threads, archive_codecs=sampling.archive_codecs, progress=report),
    )
    return SampledVideo(
        probe=samples.probe,
        jpegs=tuple(samples.frames),
        timestamps_s=tuple(samples.times_s),
        message="; ".join(filter(None, (samples.missing, samples.clock_note))),
        is_partial=bool(samples.missing),
        mode=samples.mode,
    )


def in_workers(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    config: SamplingConfig,
    left_s: Callable[[], float] | None = None,
    doing: Callable[[str], None] | None = None,
) -> Generator[tuple[Item, Result | VideoError], None, None]:
    """Compute function(item) for each item in at most `config.workers` processes; yield (item,
    result) in the items' order.

    A worker in which the function runs for `config.timeout_s` without `heartbeat.beat` is killed,
    and the item's result is a VideoError with reason timeout. If the worker dies, exceeds
    `config.max_memory_bytes` or raises, the reason is crashed. A VideoError that the function
    raises is the item's result. At most LOOKAHEAD results per worker are in memory.

    left_s: for how many seconds, above 0, to wait for all items together; when they are over, the
    reason is timeout. doing: is called with the words of the workers' beats."""
    iterator = iter(items)
    first = list(itertools.islice(iterator, config.workers))
    if not first:
        return
    watched = functools.partial(_watched, function, limit_s=config.timeout_s)
    kind = WorkerKind(num_workers=len(first), memory_bytes=config.max_memory_bytes)
    with borrowed_workers(kind) as workers:

        def outcome(item: Item, future: ProcessFuture[Any]) -> tuple[Item, Any]:
            if not _await(future, left_s, workers.beats, doing):
                killed_workers["timeout"] += 1
                return item, VideoError("timeout", "video: not done in the time of the request")
            return item, _result(future, config)

        waiting = deque[tuple[Item, ProcessFuture[Any]]]()
        for item in itertools.chain(first, iterator):
            waiting.append((item, workers.schedule(watched, item)))
            if len(waiting) >= LOOKAHEAD * config.workers:
                yield outcome(*waiting.popleft())

        while waiting:
            yield outcome(*waiting.popleft())


def _watched(function: Callable[[Item], Result], item: Item, *, limit_s: float) -> Result:
    """Runs in a worker."""
    with ended_when_silent(limit_s):
        return function(item)


def _await(
    future: ProcessFuture[Any],
    left_s: Callable[[], float] | None,
    beats: BeatReader,
    doing: Callable[[str], None] | None,
) -> bool:
    """Wait for the result, passing on what workers report; False if the time for all items is over
    first."""
    end_s = None if left_s is None else time.monotonic() + left_s()
    while not future.done():
        pause_s = None if doing is None else LOOK_EVERY_S
        if end_s is not None:
            rest_s = end_s - time.monotonic()
            if rest_s <= 0:
                return False
            pause_s = rest_s if pause_s is None else min(pause_s, rest_s)

        wait((future,), timeout=pause_s)
        if doing is not None:
            for words in beats.words():
                doing(words)

    return True


def _result(future: ProcessFuture[Any], config: SamplingConfig) -> Any:
    """What the function returned, or a VideoError."""
    try:
        return future.result()
    except VideoError as error:
        return error
    except ProcessExpired as error:
        if error.exitcode == SILENT_EXIT:
            killed_workers["timeout"] += 1
            return VideoError(
                "timeout",
                f"video: no progress for {config.timeout_s:g} s; see sampling.timeout_s",
            )

        killed_workers["crashed"] += 1
        return _crash(error)
    except Exception as error:  # whatever a damaged file provokes in a decoder costs only this item
        return _crash(error)


def _crash(error: Exception) -> VideoError:
    hint = "the file is damaged or needs more than sampling.max_memory_bytes"
    return VideoError("crashed", f"video: {type(error).__name__}: {error}; {hint}")
