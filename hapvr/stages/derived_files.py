"""What search, duplicates and watch lists keep below a data root: where it is, and whether it is whole."""

from __future__ import annotations

from hapvr.errors import DamagedError
from hapvr.search.current import CURRENT, FOLDER, model_place, verify_index
from hapvr.search.duplicates import groups_fingerprint, read_pairs
from hapvr.search.marks import PLACE as MARKS_PLACE
from hapvr.search.marks import read_marks
from hapvr.stages.alerts import OUTBOX_PLACE, AlertOutbox
from hapvr.stages.duplicates import GROUPS_PLACE, MARKED_PLACE, PAIRS_STAGE
from hapvr.stages.watch_lists import STAGE as WATCH_STAGE
from hapvr.stages.watch_lists import check_watch_matches
from hapvr.storage.filesystem import DataRoot

DESCRIPTORS = f"{FOLDER}/"
"""How the stage of descriptors begins, which has the digest of a network in its name."""
GROUPS, OUTBOX, MARKS = "duplicate_groups", "watch", "marks"
DERIVED = (FOLDER, PAIRS_STAGE, GROUPS, WATCH_STAGE, OUTBOX, MARKS)


def derived_places(root: DataRoot) -> list[tuple[str, str]]:
    """(stage, shard) of all there is; the shard is "" where a stage has none."""
    places = [
        (f"{model_place(digest)}/descriptors", key)
        for digest in root.list_folders(FOLDER)
        for key in root.list_folders(f"{model_place(digest)}/descriptors")
    ]
    places += [(FOLDER, "")] if root.exists(CURRENT) else []
    places += [(stage, key) for stage in (PAIRS_STAGE, WATCH_STAGE) for key in root.list_folders(stage)]
    files = ((GROUPS, GROUPS_PLACE), (GROUPS, MARKED_PLACE), (OUTBOX, OUTBOX_PLACE), (MARKS, MARKS_PLACE))
    return [*places, *dict.fromkeys((stage, "") for stage, file in files if root.exists(file))]


def check_derived(root: DataRoot, stage: str, key: str) -> None:
    """Read what lies at one of `derived_places`, but for descriptors, which are a shard. Raises DataError for damage."""
    if stage == FOLDER:
        if wrong := verify_index(root):
            raise DamagedError("; ".join(wrong))
    elif stage == PAIRS_STAGE:
        read_pairs(root, f"{PAIRS_STAGE}/{key}/rows.parquet")
    elif stage == GROUPS:
        groups_fingerprint(root, GROUPS_PLACE)
        read_pairs(root, MARKED_PLACE)
    elif stage == WATCH_STAGE:
        check_watch_matches(root, key)
    elif stage == OUTBOX:
        AlertOutbox(root).check()
    else:
        read_marks(root)
