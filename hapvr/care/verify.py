"""Whether the files below a data root are still what was written."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hapvr.care.stores import STORES, lost_files
from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError, DataError
from hapvr.progress import Progress, no_progress


@dataclass(frozen=True)
class FileCheck:
    """The result of checking one stored thing."""

    kind: str
    """Of `STORES`."""
    key: str
    """The key of the shard, the run or the like; "" where there is only one."""
    state: Literal["ok", "damaged", "outdated", "repaired"]
    message: str = ""
    """The problem and what to do about it; "" if there is no problem."""


def verify_root(
    root: DataRoot, *, kinds: Collection[str] | None = None, progress: Progress = no_progress
) -> list[FileCheck]:
    """Read what the chain wrote below a data root and compare it with what was recorded.

    kinds: of STORES; None for all.

    Raises:
        DataError: there is nothing to check."""
    places = []
    lost = lost_files(root)
    for name, store in STORES.items():
        if kinds is None or name in kinds:
            keys = store.keys(root)
            lost_keys = [key for kind, key in lost if kind == name and key not in keys]
            places += [(name, key) for key in (*keys, *lost_keys)]

    if not places:
        raise DataError(
            f"verify: {root.url} holds nothing that the chain wrote; is that the data root?"
        )

    checks = []
    for name, key in places:
        checks.append(check_stored(root, name, key, lost))
        progress(len(checks), len(places))

    return _confirmed(root, checks)


def _confirmed(root: DataRoot, checks: Sequence[FileCheck]) -> list[FileCheck]:
    """Check damaged things again while no repair is running: a repair that was under way may have
    set them aside."""
    if not root.is_writable() or all(check.state != "damaged" for check in checks):
        return list(checks)
    confirmed = []
    with root.care_lock():
        for check in checks:
            if check.state == "damaged":
                check = check_stored(root, check.kind, check.key)
            confirmed.append(check)

    return confirmed


def check_stored(
    root: DataRoot,
    name: str,
    key: str,
    lost: Mapping[tuple[str, str], Sequence[str]] | None = None,
) -> FileCheck:
    """Check one thing that is stored.

    name: of STORES
    lost: the result of `lost_files`; None: it is looked up
    """
    if lost is None:
        lost = lost_files(root)
    try:
        STORES[name].check(root, key)
        _require_no_loss(root, name, lost.get((name, key), ()))
        source_then, source_now = STORES[name].made_from(root, key)
    except (DataError, OSError) as error:  # the disk itself may refuse to give a file back
        return FileCheck(name, key, "damaged", str(error))

    if source_then == source_now:
        return FileCheck(name, key, "ok")
    message = (
        "made from other data than is there now; `hapvr index add`, or `sample`, `extract` and "
        "`index update`, rebuild it"
    )
    return FileCheck(name, key, "outdated", message)


def _require_no_loss(root: DataRoot, name: str, files: Sequence[str]) -> None:
    """Raise DamagedError where files of a store were made and are missing. name: of STORES"""
    if not files:
        return
    remedy = "`hapvr verify --repair` makes it again"
    if STORES[name].remake is None:
        remedy = "restore it from a copy"
    raise DamagedError(root.lost_text(files[0], remedy=remedy))
