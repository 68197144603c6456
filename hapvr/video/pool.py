"""Sampling and inspecting videos in worker processes.

A worker that hangs, crashes or takes too much memory is killed. A bad file therefore costs one row
and no more.
"""

import functools
import itertools
import resource
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import av.subtitles.stream  # noqa: F401  PyAV loads it late: again in each process that decodes one file
from pebble import ProcessExpired, ProcessFuture
from pydantic import ConfigDict, TypeAdapter

from hapvr.errors import VideoError
from hapvr.files import file_sha256
from hapvr.video.decode import VideoProbe, check_file, probe_video, read_picture, sample_frames
from hapvr.video.frames import encode_jpeg
from hapvr.video.sandbox import call_confined, missing_protection
from hapvr.video.settings import SamplingConfig
from hapvr.video.sources import is_picture
from hapvr.workers import open_pool

Item = TypeVar("Item")
Result = TypeVar("Result")

LOOKAHEAD = 3
"""Results held per worker while an earlier one is awaited. This bounds memory."""

killed_workers = Counter[str]()
"""Workers of this process that were killed or died, by reason: `timeout` or `crashed`."""

RETRYABLE = frozenset({"timeout", "crashed"})
"""Reasons of the machine rather than of the file."""


@dataclass(frozen=True)
class SampledVideo:
    """One video's sampled frames, or the reason why there are none.

    probe: None where there is a reason. jpegs: one per sampling time in timestamps_s. reason: "" if
    frames were decoded, else a code of VideoError. message: what happened; also set if only a part
    of the video could be decoded (reason ""). num_bytes: of the file, 0 if it cannot be read.
    file_sha256: digest of the file that was decoded, "" if it was not asked for or cannot be read.
    """

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    video_id: str = ""
    path: Path = Path()
    probe: VideoProbe | None = None
    jpegs: tuple[bytes, ...] = ()
    timestamps_s: tuple[float, ...] = ()
    reason: str = ""
    message: str = ""
    num_bytes: int = 0
    file_sha256: str = ""


_ANSWER = TypeAdapter(SampledVideo)
"""What a confined process says of a file: it may be a lie, but it is no pickle."""


def sample_videos(
    items: Iterable[tuple[str, Path]],
    *,
    config: SamplingConfig,
    frames: bool = True,
    digest: bool = True,
    pictures: bool = False,
    left_s: Callable[[], float] | None = None,
) -> Iterator[SampledVideo]:
    """Sample (video id, file) pairs in worker processes; one result per pair, in their order.

    Frames are JPEG (RGB). A video that fails raises nothing: its result has the reason. frames:
    False decodes the first one alone and keeps none. digest: read each file once more for its
    file_sha256; a file that changes while it is decoded then fails with reason changed_file.
    pictures: a file that is named as a still picture is a video of one frame. left_s: see
    `in_workers`.
    """
    if missing := missing_protection():
        warnings.warn(
            f"video: a decoder that a hostile file takes over is not confined: no {missing}"
        )
    decode = functools.partial(
        _decode, sampling=config if frames else None, digest=digest, pictures=pictures
    )
    for (video_id, path), result in in_workers(decode, items, config=config, left_s=left_s):
        if isinstance(result, VideoError):
            result = SampledVideo(video_id, path, reason=result.reason, message=str(result))
        yield result


def _decode(
    item: tuple[str, Path], *, sampling: SamplingConfig | None, digest: bool, pictures: bool
) -> SampledVideo:
    """sampling: None decodes the first frame alone."""
    video_id, path = item
    before = check_file(path)
    answer = functools.partial(_answer, path, sampling, pictures and is_picture(path))
    sha256 = (
        file_sha256(path) if digest else ""
    )  # first: decoders take what cannot be read for the end of the file
    found = _ANSWER.validate_json(call_confined(answer, readable=path))
    if len(found.jpegs) != len(found.timestamps_s):
        raise ValueError(f"{len(found.jpegs)} frames at {len(found.timestamps_s)} times")
    if digest and check_file(path) != before:
        said = f"video: {path.name} changed while it was read; run the step again"
        found = SampledVideo(reason="changed_file", message=said)
    return replace(
        found, video_id=video_id, path=path, num_bytes=before.num_bytes, file_sha256=sha256
    )


def _answer(path: Path, sampling: SamplingConfig | None, picture: bool) -> bytes:
    """Runs in the confined process."""
    try:
        if sampling is None:
            found = SampledVideo(probe=probe_video(path))
        elif picture:
            jpeg = encode_jpeg(read_picture(path, short_side_px=sampling.short_side_px))
            found = SampledVideo(jpegs=(jpeg,), timestamps_s=(0.0,))
        else:
            wanted = sampling.model_dump(include={"fps", "short_side_px", "max_frames"})
            probe, jpegs, missing = sample_frames(path, **wanted, keep=encode_jpeg)
            times_s = tuple(k / sampling.fps for k in range(len(jpegs)))
            found = SampledVideo(
                probe=probe, jpegs=tuple(jpegs), timestamps_s=times_s, message=missing
            )
    except VideoError as error:
        found = SampledVideo(reason=error.reason, message=str(error))
    # names of files need not be UTF-8
    return _ANSWER.dump_json(
        replace(found, message=found.message.encode(errors="backslashreplace").decode())
    )


def in_workers(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    config: SamplingConfig,
    left_s: Callable[[], float] | None = None,
) -> Iterator[tuple[Item, Result | VideoError]]:
    """Compute function(item) for each item in at most `config.workers` processes; yield (item,
    result) in the items' order.

    A worker that needs more than `config.timeout_s` for an item is killed, and the item's result is
    a VideoError with reason timeout. If the worker dies, exceeds `config.max_memory_bytes` or
    raises, the reason is crashed. A VideoError that the function raises is the item's result.
    Memory holds at most LOOKAHEAD results per worker.

    left_s: the seconds, above 0, that may still be waited for all items together; when they are
    over, the reason is timeout. `config.timeout_s` alone does not bound a call: it begins again for
    each item, and after its worker has started."""
    iterator = iter(items)
    first = list(itertools.islice(iterator, config.workers))
    if not first:
        return

    def outcome(item: Item, future: ProcessFuture[Any]) -> tuple[Item, Any]:
        try:
            return item, future.result(None if left_s is None else left_s())
        except FutureTimeoutError:
            killed_workers["timeout"] += 1
            return item, VideoError(
                "timeout", f"video: not done after {config.timeout_s:g} s; see sampling.timeout_s"
            )
        except VideoError as error:
            return item, error
        except (
            Exception
        ) as error:  # whatever a damaged file provokes in a decoder costs this item only
            killed_workers["crashed"] += isinstance(error, ProcessExpired)
            hint = "the file is damaged or needs more than sampling.max_memory_bytes"
            return item, VideoError("crashed", f"video: {type(error).__name__}: {error}; {hint}")

    with open_pool(
        workers=len(first), limits={resource.RLIMIT_AS: config.max_memory_bytes}
    ) as pool:
        waiting = deque[tuple[Item, ProcessFuture[Any]]]()
        for item in itertools.chain(first, iterator):
            waiting.append((item, pool.schedule(function, args=(item,), timeout=config.timeout_s)))
            if len(waiting) >= LOOKAHEAD * config.workers:
                yield outcome(*waiting.popleft())
        while waiting:
            yield outcome(*waiting.popleft())
