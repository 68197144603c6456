"""How tables, files and the registry forget videos."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from hapvr.care.forgetting import Forget, Forgetting, mentions
from hapvr.data import manifest, set_aside
from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError
from hapvr.search.duplicates import GROUPS_PLACE
from hapvr.search.kept_answers import forget_answers
from hapvr.search.marks import MARKS_LOCK, Mark, keep_marks, read_marks
from hapvr.steps import watch_lists
from hapvr.steps.alerts import OUTBOX_PLACE, AlertOutbox
from hapvr.steps.copy_measures import PICTURES_PLACE
from hapvr.steps.duplicate_groups import GROUPS_LOCK
from hapvr.steps.fetching import download_folder
from hapvr.steps.model_places import MODELS
from hapvr.steps.project import REGISTRY, Project
from hapvr.steps.shard_rows import rows_place
from hapvr.steps.sources import CORPUS_FOLDER, inspected_videos
from hapvr.steps.watch_queries import LISTS
from hapvr.tables import read_table, write_table
from hapvr.video.sources import is_remote


def forget_fetched_files(project: Project, forgetting: Forgetting) -> None:
    """Remove files that we fetched, and what a killed repair has set aside; a user's own files
    stay."""
    set_aside.remove_of(project.root, forgetting.shards)
    for video in forgetting.videos:
        if is_remote(video.uri):
            from hapvr.video.download import remove_fetched

            remove_fetched(video.video_id, download_folder(project) / video.shard)


def forget_in_marks(project: Project, forgetting: Forgetting) -> None:
    """Remove the marks of forgotten contents; where a content stays under another name, its marks
    get that name."""
    root = project.root
    inspected = inspected_videos(root, manifest.shard_keys(root))
    staying = {row["sha256"]: row["video_id"] for _, row in inspected}
    renamed: list[Mark] = []
    removed: list[Mark] = []
    with root.lock(MARKS_LOCK):
        for mark in read_marks(root).rows():
            names = []
            for digest, name in zip((mark.first, mark.second), mark.names, strict=True):
                names.append(staying.get(digest, "") if name in forgetting.values else name)
            shows_forgotten = not forgetting.values.isdisjoint((mark.first, mark.second))
            if shows_forgotten or not all(names):
                removed.append(mark)
            elif tuple(names) != mark.names:
                renamed.append(replace(mark, names=(names[0], names[1])))

        if renamed or removed:
            keep_marks(root, renamed, without=removed)


def forget_in_rows(stage: str) -> Forget:
    """Forgets in the tables of a stage: pairs, or matches of watch lists."""

    def forget(project: Project, forgetting: Forgetting) -> None:
        root = project.root
        for key in sorted({*manifest.shard_keys(root), *root.list_folders(stage)}):
            with root.lock(f"{stage}/{key}"):  # a running search first writes what it has found
                _forget_in_table(root, rows_place(stage, key), forgetting.values)

    return forget


def forget_in_groups(project: Project, forgetting: Forgetting) -> None:
    """Remove what was measured of the copies, and all groups, since these are made from the
    pairs."""
    root = project.root
    with root.lock(GROUPS_LOCK):  # a grouping that is under way names them until it ends
        _forget_in_table(root, PICTURES_PLACE, forgetting.values)
        root.delete(GROUPS_PLACE)


def forget_in_watch_lists(project: Project, forgetting: Forgetting) -> None:
    """Remove the lists that were made of these videos, and only then matches: so a run that waits
    for the shard finds the list gone."""
    root = project.root
    for name in root.list_folders(LISTS):
        place = f"{LISTS}/{name}"
        contents = {file.partition(".")[0] for file in root.list_files(place)}
        if not contents.isdisjoint(forgetting.values):
            root.delete_folder(place)

    forget_in_rows(watch_lists.STAGE)(project, forgetting)


def forget_in_outbox(project: Project, forgetting: Forgetting) -> None:
    """Remove messages that name them."""
    if project.root.exists(OUTBOX_PLACE):
        AlertOutbox(project.root).forget(forgetting.values)


def forget_generated(project: Project, forgetting: Forgetting) -> None:
    """Remove benchmarks that were generated of the videos."""
    root = project.root
    folders = root.list_folders(CORPUS_FOLDER)
    generated = [name for name in folders if mentions(root, name, forgetting.values)]
    for name in generated:
        root.delete_folder(f"{CORPUS_FOLDER}/{name}")
        forgetting.generated.append(name)


def forget_in_trainings(project: Project, forgetting: Forgetting) -> None:
    """Remove scores from the folders of trainings and from the artifacts of all runs, even deleted
    ones."""
    root = project.root
    values = forgetting.values
    if root.local is None:
        return
    models = root.local_path(MODELS).resolve()
    for path in models.glob("*/benchmarks/**/*.parquet"):
        if path.resolve() == path:  # files behind a link are not ours
            _forget_in_table(root, f"{MODELS}/{path.relative_to(models).as_posix()}", values)

    if not (root.exists(REGISTRY) or project.config.tracking.uri):
        return
    from hapvr.steps.training import tracker_of

    tracker = tracker_of(project)
    with tempfile.TemporaryDirectory() as temporary:
        copies = DataRoot(temporary)
        for run_id, place in tracker.tables():
            path = tracker.client.download_artifacts(run_id, place, temporary)
            if _forget_in_table(copies, Path(path).relative_to(temporary).as_posix(), values):
                tracker.client.log_artifact(run_id, path, place.rpartition("/")[0])


def _forget_in_table(root: DataRoot, place: str, values: frozenset[str]) -> bool:
    """Remove the rows in which a text is one of these values; returns whether there were any. A
    damaged table is removed."""
    if not root.exists(place):
        return False
    try:
        with root.open(place) as file, root.corruption_errors(place, hint="it is rebuilt"):
            table = read_table(pa.BufferReader(file.read()))
    except DamagedError:
        root.delete(place)
        return False

    kept = table
    for column in table.schema:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            named = values.intersection(kept[column.name].unique().to_pylist())
            goes = pc.is_in(kept[column.name], value_set=pa.array(sorted(named), column.type))
            kept = kept.filter(pc.invert(goes))

    if len(kept) < len(table):
        with root.write(place) as stream:
            write_table(kept, stream)

    return len(kept) < len(table)


def forget_in_answers(project: Project, forgetting: Forgetting) -> None:
    """Remove answers of the search service that name them, or had one of them as the query."""
    forget_answers(project.root, forgetting.values)
