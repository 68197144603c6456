"""Independent pieces of work over a few processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_tasks(work: Callable[[Task], Result], tasks: Sequence[Task], *, workers: int) -> Iterator[Result]:
    """Yield work(task) of every task as each is done, in any order; an error in one ends all.

    work: a module-level function. workers: processes; with 1, or a single task, everything runs in this process.
    """
    if workers <= 1 or len(tasks) <= 1:
        yield from map(work, tasks)
        return
    with ProcessPoolExecutor(min(workers, len(tasks)), mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(work, task) for task in tasks]):
            yield future.result()
