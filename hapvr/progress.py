"""How long work tells its caller how far it is, without knowing whether that is a terminal or a
run's log."""

from collections.abc import Callable, Mapping

Progress = Callable[[int, int], None]
"""Is told how much is done, and of how much; 0 while that is unknown. One that can show what is
being worked on has an attribute `doing`, a function of a line of text."""


def no_progress(done: int, total: int) -> None:
    """Says nothing."""


def shows_work(progress: Progress) -> Callable[[str], None] | None:
    """The function that shows what is being worked on, if the progress has one."""
    doing: Callable[[str], None] | None = getattr(progress, "doing", None)
    return doing


def seconds_left(elapsed_s: float, done: float, total: float) -> float | None:
    """How long the rest takes at the pace so far; None where nothing says so yet."""
    if done <= 0 or total <= 0:
        return None
    return elapsed_s * max(total - done, 0) / done


def duration_text(seconds: float) -> str:
    """About how long, e.g. "2 min"."""
    if seconds < 60:
        return "less than a minute"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def clock_text(seconds: float) -> str:
    """As 1:02:03; a confined process may give any number."""
    minutes, second = divmod(int(min(max(seconds, 0), 1e9)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}"


class FilesOfShards:
    """The progress of a step over all its shards, in files."""

    def __init__(self, progress: Progress, num_files: Mapping[str, int]) -> None:
        self._progress = progress
        self._num_files = num_files
        self._total = sum(num_files.values())
        self._done = 0

    def of(self, key: str) -> Progress:
        """The progress of one shard, whatever it counts."""
        if not self._total:
            return self._progress
        return _Shard(self, self._progress, self._num_files[key])

    def finish(self, key: str) -> None:
        """A shard is done."""
        self._done += self._num_files[key]
        self.show(0)

    def show(self, done_of_shard: float) -> None:
        """How many files of the shard that is worked on are done."""
        if self._total:
            self._progress(self._done + int(done_of_shard), self._total)


class _Shard:
    """A `Progress` of one shard, which tells that of all."""

    def __init__(self, overall: FilesOfShards, progress: Progress, num_files: int) -> None:
        self._overall = overall
        self._num_files = num_files
        doing = shows_work(progress)
        if doing is not None:
            self.doing = doing

    def __call__(self, done: int, total: int) -> None:
        if total:
            self._overall.show(self._num_files * min(done / total, 1))
