"""How verbs show how far they are: a bar on a terminal, or a line a minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hapvr.commands.terminal import say
from hapvr.progress import Progress, duration_text, no_progress, seconds_left
from hapvr.reporting import UNSAFE

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

MAX_DOING = 60
"""Characters of what a bar says is being worked on."""
DOING_END = 24
"""Of these, characters of the end, as in "decoding, at 1:02:03"."""
SPOKEN_S = 60.0
"""How often work says how far it is where nobody sees a bar, as in the log of a nightly job."""


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A bar on the terminal's standard error; nothing where that is not a terminal."""
    if not sys.stderr.isatty():
        yield no_progress
        return

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress as RichProgress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(file=sys.stderr), transient=True) as bars:
        yield _Bar(bars, what)


@contextmanager
def long_progress(what: str) -> Iterator[Progress]:
    """A bar on a terminal; elsewhere a line a minute on standard error."""
    if sys.stderr.isatty():
        with progress_bar(what) as progress:
            yield progress
    else:
        yield _Lines(what)


class _Lines:
    """A `Progress` that writes a line of text from time to time."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._begun_s = time.monotonic()
        self._spoken_s = self._begun_s

        self._amount = ""

    def __call__(self, done: int, total: int) -> None:
        left_s = seconds_left(time.monotonic() - self._begun_s, done, total)
        left = "" if left_s is None else f", {duration_text(left_s)} left"
        amount = f"{done:,} of {total:,}" if total else f"{done:,}"
        self._amount = f": {amount}"
        if self._is_due():
            self._speak(f"{self._what}{self._amount}{left}")

    def doing(self, text: str) -> None:
        """E.g. which file is read, and how far it is: of a long one, this is all there is to
        say."""
        if self._is_due():
            self._speak(f"{self._what}{self._amount}; {text}")

    def _is_due(self) -> bool:
        return time.monotonic() - self._spoken_s >= SPOKEN_S

    def _speak(self, line: str) -> None:
        self._spoken_s = time.monotonic()
        say(line, err=True)


def shortened(text: str) -> str:
    """A text of at most MAX_DOING characters: its middle is left out, as a long name of a file
    comes first, and how far it is comes last."""
    if len(text) <= MAX_DOING:
        return text
    return f"{text[: MAX_DOING - DOING_END - 1]}…{text[-DOING_END:]}"


class _Bar:
    """A `Progress` on a terminal that also shows what is being worked on."""

    def __init__(self, bars: RichProgress, what: str) -> None:
        self._bars = bars
        self._what = what
        self._task = bars.add_task(what, total=None)

    def __call__(self, done: int, total: int) -> None:
        self._bars.update(self._task, completed=done, total=total or None)

    def doing(self, text: str) -> None:
        """E.g. which file is read, and how far it is."""
        readable = shortened(UNSAFE.sub("?", text))
        self._bars.update(self._task, description=f"{self._what}  {readable}")
