"""What the benchmarks share: options, works that take turns, so that other load affects all of them
alike, and a table."""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hapvr.tables import markdown_table


def parse(usage: str | None, **defaults: Any) -> argparse.Namespace:
    """`--name VALUE` for each of these, `--name VALUE ...` for a tuple; `threads` are torch's.
    usage: what --help prints."""
    parser = argparse.ArgumentParser(
        description=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        many = isinstance(default, tuple)
        kind = type(default[0] if many else default)
        parser.add_argument(f"--{name}", type=kind, nargs="+" if many else None, default=default)

    options = parser.parse_args()
    torch.set_num_threads(getattr(options, "threads", torch.get_num_threads()))
    return options


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
    lines = [
        [f"{value:.3g}" if isinstance(value, float) else str(value) for value in row]
        for row in values
    ]
    sys.stdout.write(f"{markdown_table(names, lines)}\n")


def _wait_for(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
