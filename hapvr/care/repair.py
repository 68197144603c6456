"""Rebuilding what is damaged. Repairs lose nothing: a damaged file is set aside under another name
until its replacement is whole, and is put back where none can be made. Only files that our own
records say we made or fetched are touched."""

from collections.abc import Sequence
from dataclasses import replace

from hapvr.care.stores import STORES
from hapvr.care.verify import FileCheck, check_stored, verify_root
from hapvr.data import set_aside
from hapvr.data.filesystem import DataRoot
from hapvr.errors import HapvrError
from hapvr.progress import Progress, no_progress
from hapvr.steps.project import Project


def repair(
    project: Project, checks: Sequence[FileCheck], *, progress: Progress = no_progress
) -> list[FileCheck]:
    """Rebuild what is damaged, in the order of the chain; returns all checks, with the outcome."""
    root = project.root
    with root.care_lock():
        set_aside.put_back_unreplaced(root)
        order = list(STORES)
        damaged = [check for check in checks if check.state == "damaged"]
        damaged.sort(key=lambda check: order.index(check.kind))
        results: dict[FileCheck, FileCheck] = {}
        for before in damaged:
            results[before] = _repaired(project, before)
            progress(len(results), len(damaged))

        _clear_set_aside(root)

    return [results.get(check, check) for check in checks]


def _repaired(project: Project, damaged: FileCheck) -> FileCheck:
    """Rebuild one damaged thing; returns the outcome."""
    store = STORES[damaged.kind]
    if store.remake is None:
        return replace(damaged, message=f"{damaged.message}. {store.advice}")
    try:
        # It may be whole by now: its inputs were repaired, or another process repaired it.
        after = check_stored(project.root, damaged.kind, damaged.key)
        if after.state == "damaged":
            store.remake(project, damaged.key)
            after = check_stored(project.root, damaged.kind, damaged.key)
    except (HapvrError, OSError) as error:
        return replace(damaged, message=f"{damaged.message}. It could not be rebuilt: {error}")

    return replace(damaged, state="repaired") if after.state == "ok" else after


def _clear_set_aside(root: DataRoot) -> None:
    """Remove what a killed repair had set aside and replaced, once nothing is damaged any more."""
    if set_aside.is_empty(root):
        return
    if all(check.state != "damaged" for check in verify_root(root)):
        set_aside.remove_all(root)
