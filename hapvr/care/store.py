"""The interface of everything that is stored below a data root."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hapvr.care.forgetting import Forget, Forgetting
from hapvr.data.filesystem import DataRoot
from hapvr.steps.project import Project


def _unknown(root: DataRoot, key: str) -> tuple[object, object]:
    return None, None


def _holds_no_video(project: Project, forgetting: Forgetting) -> None:
    """Forgets nothing: the store has no data on single videos."""


@dataclass(frozen=True, kw_only=True)
class Store:
    """One kind of stored data: shards of a stage, marks, an index."""

    keys: Callable[[DataRoot], Sequence[str]]
    """The keys of all that is stored; "" where there is only one."""

    places: Sequence[str]
    """Files and folders whose loss is damage; each part that is `*` is a part of the key."""

    check: Callable[[DataRoot, str], object]
    """Raises DataError for damage."""

    remake: Callable[[Project, str], object] | None = None
    """Rebuilds damaged data; None where nothing can, and `advice` says what to do."""

    made_from: Callable[[DataRoot, str], tuple[object, object]] = _unknown
    """Digests of its inputs, as recorded and as they are now: a part of a data root that was copied
    back may be older than the rest. Equal where nothing is recorded."""

    forget: Forget = _holds_no_video

    advice: str = "Nothing else rebuilds it"
