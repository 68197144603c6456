"""The files that plans for copies have moved aside, so that they are not reported as missing."""

import os
import warnings
from collections.abc import Iterable, Sequence

from hapvr.data.manifest import (
    PLANNED,
    name_digest,
    planned_moves,
    read_manifest_shard,
    shard_keys,
)
from hapvr.errors import DataError
from hapvr.search.duplicates import GroupMember
from hapvr.search.plan import moved_paths
from hapvr.steps.project import Project
from hapvr.video.sources import path_of_text


def remember_plan(project: Project, members: Sequence[GroupMember]) -> None:
    """Remember which files a plan moves, as digests of their paths. Warns if the data root cannot
    be written."""
    root = project.root
    moved = {name_digest(path) for path in moved_paths(members)}
    if moved <= planned_moves(root):
        return
    try:
        with root.lock("plans"):  # another plan may be written at the same time
            root.write_json(PLANNED, {"moved": sorted(moved | planned_moves(root))})
    except (DataError, OSError) as error:
        warnings.warn(f"{error}. `hapvr index add` will miss the files that this plan moves")


def set_aside(project: Project, video_ids: Iterable[str]) -> set[str]:
    """The videos among these whose files a plan has moved."""
    planned = planned_moves(project.root)
    if not planned:
        return set()
    wanted = set(video_ids)
    moved: set[str] = set()
    for key in shard_keys(project.root):
        for row in read_manifest_shard(project.root, key):
            is_planned = row.video_id in wanted and name_digest(row.uri) in planned
            if is_planned and not os.path.lexists(path_of_text(row.uri)):
                moved.add(row.video_id)

    return moved
