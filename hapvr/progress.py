"""How long work tells its caller how far it is, without knowing whether that is a terminal or a
run's log."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Is told how much is done, and of how much; 0 while that is unknown. One that can show what is
being worked on has an attribute `doing`, a function of a line of text."""


def no_progress(done: int, total: int) -> None:
    """Says nothing."""


def shows_work(progress: Progress) -> Callable[[str], None] | None:
    """The function that shows what is being worked on, if the progress has one."""
    doing: Callable[[str], None] | None = getattr(progress, "doing", None)
    return doing
