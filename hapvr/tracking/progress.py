"""Progress of a training process: to the orchestrator that started it (Dagster Pipes), or to the terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, PipesContext, open_dagster_pipes
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hapvr.train.report import BatchReport, Logger


class ProgressLog:
    """A logger that prints metrics as lines, at most one every `every_s` seconds. It prints every validation."""

    def __init__(self, steps: int, pipes: PipesContext | None, *, every_s: float = 5.0) -> None:
        self._steps = steps
        self._pipes = pipes
        self._every_s = every_s
        self._last = 0.0

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        validation = _validation(values)
        now = time.monotonic()
        if not validation and now - self._last < self._every_s and step + 1 < self._steps:
            return
        self._last = now
        shown = validation or {name: values[name] for name in ("loss/total", "learning_rate") if name in values}
        self.message(f"step {step + 1}/{self._steps}: {_listed(shown)}")

    def batch(self, step: int, report: BatchReport) -> None:
        """Batches are for MLflow."""

    def message(self, text: str) -> None:
        if self._pipes is not None:
            self._pipes.log.info(text)
        else:
            sys.stderr.write(text + "\n")


class ProgressBar:
    """A logger that moves a progress bar on a terminal and prints validations and messages above it."""

    def __init__(self, steps: int, bar: Progress) -> None:
        self._steps = steps
        self._bar = bar
        self._task = bar.add_task("training", total=steps, shown="")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if validation := _validation(values):
            self.message(f"step {step + 1}/{self._steps}: {_listed(validation)}")
        else:
            names = ("loss/total", "clips_per_s", "wait_rate")
            shown = _listed({name: values[name] for name in names if name in values})
            self._bar.update(self._task, completed=step + 1, shown=shown)

    def batch(self, step: int, report: BatchReport) -> None:
        """Batches are for MLflow."""

    def message(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)


@contextmanager
def progress_logger(steps: int, *, is_main: bool) -> Iterator[Logger | None]:
    """The logger of this process. Only the first rank has one, because only it may talk through Pipes; else None."""
    if not is_main:
        yield None
    elif DAGSTER_PIPES_CONTEXT_ENV_VAR in os.environ:
        with open_dagster_pipes() as pipes:
            yield ProgressLog(steps, pipes)
    elif sys.stderr.isatty():
        columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[shown]}"), console=Console(stderr=True)) as bar:
            yield ProgressBar(steps, bar)
    else:
        yield ProgressLog(steps, None)


def _validation(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if name.startswith("validation/")}


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
