"""What the benchmarks share: works that take turns, so that other load meets all of them alike, and a table of the results."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hapvr.tables import markdown_table


def take_turns(
    works: Mapping[str, Callable[[], object]], *, rounds: int, device: torch.device | None = None
) -> dict[str, list[float]]:
    """Wall seconds of each work, `rounds` times, every round all of them once."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            _wait_for(device)
            start = time.perf_counter()
            work()
            _wait_for(device)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """The median over rounds of slow / fast."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a Markdown table; numbers with three digits."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    values = [[row.get(name, "") for name in names] for row in rows]
    lines = [[f"{value:.3g}" if isinstance(value, float) else str(value) for value in row] for row in values]
    sys.stdout.write(f"{markdown_table(names, lines)}\n")


def _wait_for(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
