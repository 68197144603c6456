"""What is asked of everything that is stored below a data root."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hapvr.care.forgetting import Forget, Forgetting
from hapvr.data.filesystem import DataRoot
from hapvr.steps.project import Project


def _unknown(root: DataRoot, key: str) -> tuple[object, object]:
    return None, None


def _holds_no_video(project: Project, forgetting: Forgetting) -> None:
    """What is stored tells nothing of single videos."""


@dataclass(frozen=True, kw_only=True)
class Store:
    """One kind of what is stored: shards of a stage, marks, an index."""

    keys: Callable[[DataRoot], Sequence[str]]
    """Of all there is; "" where there is only one."""

    check: Callable[[DataRoot, str], object]
    """Raises DataError for damage."""

    remake: Callable[[Project, str], object] | None = None
    """None where nothing can, and `advice` says what to do."""

    made_from: Callable[[DataRoot, str], tuple[object, object]] = _unknown
    """Digests of what it was made from, and of that as it is now: a copy of a part of a data root
    may be older than the rest. Equal where nothing is known."""

    forget: Forget = _holds_no_video

    advice: str = "Nothing else makes it again"
