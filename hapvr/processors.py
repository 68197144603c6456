"""How many processors this process computes with, and how often it looks for garbage."""

import gc
import os

_READ_BY_LIBRARIES = ("OMP_NUM_THREADS", "LANCE_CPU_THREADS")
"""By numpy, torch and Lance, where they are imported."""

_NEW_OBJECTS = 20_000
"""Containers that are made, and not deleted, between two looks for garbage."""

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


def collect_garbage_seldom() -> None:
    """Look for objects that refer to each other alone where there are many new ones. For a program
    of ours: with Python's default, that takes a tenth of the time of its start."""
    gc.set_threshold(_NEW_OBJECTS)
