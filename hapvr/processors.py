"""How many processors this process computes with."""

import os

_READ_BY_LIBRARIES = ("OMP_NUM_THREADS", "LANCE_CPU_THREADS")
"""By numpy, torch and Lance, where they are imported."""

_most: int | None = None


def processors() -> int:
    """How many threads are worth starting: one per processor that this process may use, or what
    `use_processors` says."""
    return _most or len(os.sched_getaffinity(0))


def use_processors(count: int) -> None:
    """Compute with so many from now on: other processes work beside this one. Call it before
    numpy, torch and Lance are imported; what the environment says of one of them counts."""
    global _most
    _most = count
    for name in _READ_BY_LIBRARIES:
        os.environ.setdefault(name, str(count))
