"""Whether what is stored below a data root still is what was written."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from hapvr.care.stores import STORES
from hapvr.data.filesystem import DataRoot
from hapvr.errors import DataError
from hapvr.progress import Progress, no_progress


@dataclass(frozen=True)
class FileCheck:
    """What was found of one thing that is stored. kind: of `STORES`; key: of the shard, the run or
    the like, "" where there is only one. message: the problem and what to do about it; "" if there
    is none."""

    kind: str
    key: str
    state: Literal["ok", "damaged", "outdated", "repaired"]
    message: str = ""


def verify_root(
    root: DataRoot, *, kinds: Collection[str] | None = None, progress: Progress = no_progress
) -> list[FileCheck]:
    """Read what the chain wrote below a data root and compare it with what was recorded of it.
    kinds: of STORES; None for all. Raises DataError where there is nothing to check."""
    chosen = STORES if kinds is None else kinds
    places = [
        (name, key) for name, store in STORES.items() if name in chosen for key in store.keys(root)
    ]
    if not places:
        raise DataError(
            f"verify: {root.url} holds nothing that the chain wrote; is that the data root?"
        )
    checks = []
    for name, key in places:
        checks.append(check(root, name, key))
        progress(len(checks), len(places))
    return _confirmed(root, checks)


def _confirmed(root: DataRoot, checks: Sequence[FileCheck]) -> list[FileCheck]:
    """What is damaged is checked again while nothing is repaired: a repair that was under way may
    have had it set aside."""
    if not root.is_writable() or all(one.state != "damaged" for one in checks):
        return list(checks)
    with root.care_lock():
        return [check(root, one.kind, one.key) if one.state == "damaged" else one for one in checks]


def check(root: DataRoot, name: str, key: str) -> FileCheck:
    """Check one thing that is stored. name: of STORES."""
    try:
        STORES[name].check(root, key)
        made, there = STORES[name].made_from(root, key)
    except (DataError, OSError) as error:  # the disk itself may refuse to give a file back
        return FileCheck(name, key, "damaged", str(error))
    if made == there:
        return FileCheck(name, key, "ok")
    said = (
        "made from other data than is there; `hapvr index add`, or `sample`, `extract` "
        "and `index update`, make it again"
    )
    return FileCheck(name, key, "outdated", said)
