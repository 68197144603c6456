"""Work in processes that are killed when they hang, crash or grow: a bad item costs one result and no more."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import resource
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from pebble import ProcessFuture, ProcessPool

from hapvr.config import SamplingConfig
from hapvr.errors import VideoError
from hapvr.video.processes import CleanContext

Item = TypeVar("Item")
Result = TypeVar("Result")

LOOKAHEAD = 3
"""Results held per worker while an earlier one is awaited; this bounds memory."""

TASKS_PER_WORKER = 200
"""A worker is replaced after so many videos, which returns whatever the decoders leaked."""


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
    with open_pool(config) as pool:
        waiting = deque[tuple[Item, ProcessFuture[Any]]]()
        for item in itertools.chain(first, iterator):
            waiting.append((item, pool.schedule(function, args=(item,), timeout=config.timeout_s)))
            if len(waiting) >= LOOKAHEAD * config.workers:
                item, future = waiting.popleft()
                yield item, outcome(pool, item, future, config=config, retry=retry)
        while waiting:
            item, future = waiting.popleft()
            yield item, outcome(pool, item, future, config=config, retry=retry)


@contextlib.contextmanager
def open_pool(config: SamplingConfig) -> Iterator[ProcessPool]:
    """`config.workers` processes that die when they take more than their memory, and with this process."""
    with ProcessPool(
        max_workers=config.workers,
        max_tasks=TASKS_PER_WORKER,
        initializer=_prepare_worker,
        initargs=(config.max_memory_bytes,),
        context=CleanContext(),
    ) as pool:
        try:
            yield pool
        finally:
            pool.stop()  # type: ignore[no-untyped-call]


def outcome(
    pool: ProcessPool,
    item: Item,
    future: ProcessFuture[Any],
    *,
    config: SamplingConfig,
    retry: Callable[[Item], Result] | None,
) -> Any:
    """What a scheduled item came to: its result, or a VideoError after `retry` failed too."""
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
    return outcome(pool, item, pool.schedule(retry, args=(item,), timeout=config.timeout_s), config=config, retry=None)


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
