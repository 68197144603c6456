"""How many processors this process computes with, and what programs of ours set before they
start."""

import gc
import os

_READ_BY_LIBRARIES = ("OMP_NUM_THREADS", "LANCE_CPU_THREADS")
"""By torch and Lance, where they are imported."""

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


def prepare_program() -> None:
    """What a program of ours sets before it imports anything heavy; a library must not.

    It looks for garbage seldom: with Python's default, that takes a tenth of the time of its start.
    And numpy multiplies by one thread, unless the environment says otherwise: the matrices of a
    search are small, so that others gain nothing and wait for the next one at full speed, which
    doubled the processor time of a search.
    """
    gc.set_threshold(_NEW_OBJECTS)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
