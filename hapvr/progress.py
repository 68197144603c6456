"""How long work tells its caller how far it is, without knowing whether that is a terminal or a
run's log."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Is told how much is done, and of how much; 0 while that is unknown."""


def no_progress(done: int, total: int) -> None:
    """Says nothing."""
