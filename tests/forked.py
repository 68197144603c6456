"""Processes that are forked from a server which has imported what tests run in them.

Python has one such server for each test process, and whoever starts it first says what it imports.
So all tests say the same: what is missing there would be imported anew in each fork, which takes
seconds.
"""

from multiprocessing import get_context
from multiprocessing.context import ForkServerContext

IMPORTED = [
    "hapvr.video.download",
    "tests.care.forgettable",
    "tests.care.test_repair",
    "tests.steps.kills",
    "tests.train.killed",
]


def forking() -> ForkServerContext:
    """Makes processes that have imported all of IMPORTED."""
    context = get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context
