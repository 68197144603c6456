"""Progress of a training process: to the orchestrator that started it (Dagster Pipes), or to the terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, open_dagster_pipes

from hapvr.train.run_folder import Logger


class ProgressLog(Logger):
    """A logger that prints metrics as lines, at most one every `every_s` seconds. It prints every validation."""

    def __init__(self, steps: int, say: Callable[[str], object], *, every_s: float = 5.0) -> None:
        self._steps = steps
        self._every_s = every_s
        self._last = 0.0
        self._say = say

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        validation = {name: value for name, value in values.items() if name.startswith("validation/")}
        now = time.monotonic()
        if not validation and now - self._last < self._every_s and step + 1 < self._steps:
            return
        self._last = now
        names = ("loss/total", "learning_rate", "clips_per_s", "wait_rate")
        shown = validation or {name: values[name] for name in names if name in values}
        listed = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
        self.message(f"step {step + 1}/{self._steps}: {listed}")

    def message(self, text: str) -> None:
        self._say(text)


@contextmanager
def progress_logger(steps: int, *, is_main: bool) -> Iterator[Logger | None]:
    """The logger of this process. Only the first rank has one, because only it may talk through Pipes; else None."""
    if not is_main:
        yield None
    elif DAGSTER_PIPES_CONTEXT_ENV_VAR in os.environ:
        with open_dagster_pipes() as pipes:
            yield ProgressLog(steps, pipes.log.info)
    else:
        yield ProgressLog(steps, lambda text: sys.stderr.write(text + "\n"))
