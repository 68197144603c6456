"""Progress of a training process: to the orchestrator that started it (Dagster Pipes), or to the terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, PipesContext, open_dagster_pipes

from hapvr.train.report import Listener


class ProgressLog:
    """A listener that turns metrics into lines, at most one every `every_s` seconds, validations always."""

    def __init__(self, steps: int, pipes: PipesContext | None, *, every_s: float = 5.0) -> None:
        self._steps = steps
        self._pipes = pipes
        self._every_s = every_s
        self._last = 0.0

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        validation = {name: value for name, value in values.items() if name.startswith("validation/")}
        now = time.monotonic()
        if not validation and now - self._last < self._every_s and step + 1 < self._steps:
            return
        self._last = now
        shown = validation or {name: values[name] for name in ("loss/total", "learning_rate") if name in values}
        self.message(
            f"step {step + 1}/{self._steps}: " + ", ".join(f"{key} {value:.4g}" for key, value in shown.items())
        )

    def message(self, text: str) -> None:
        if self._pipes is not None:
            self._pipes.log.info(text)
        else:
            sys.stderr.write(text + "\n")


@contextmanager
def progress_listener(steps: int, *, is_main: bool) -> Iterator[Listener | None]:
    """The listener of this process; None on all ranks but the first, which alone may talk through Pipes."""
    if not is_main:
        yield None
    elif DAGSTER_PIPES_CONTEXT_ENV_VAR in os.environ:
        with open_dagster_pipes() as pipes:
            yield ProgressLog(steps, pipes)
    else:
        yield ProgressLog(steps, None)
