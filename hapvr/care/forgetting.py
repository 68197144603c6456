"""What is removed of a video from each store.

A shard is written without the rows. What was made from it then names it by its new digest, so it
counts as done as before, and nothing is decoded again.
"""

import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from hapvr.data import features, frames, manifest, set_aside
from hapvr.data.features import LABELS_STAGE, VIEWS_STAGE
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import MANIFEST_STAGE, VIDEOS_STAGE
from hapvr.data.shards import INDEX_FIELDS, Shard, ShardIndex
from hapvr.data.video_rows import VideoRows
from hapvr.errors import DamagedError
from hapvr.files import PART_SUFFIX
from hapvr.networks.whitening import PROVENANCE_NAME, whitening_provenance
from hapvr.search.collection import FOLDER as SEARCH, model_place, serving_index
from hapvr.search.descriptors import descriptor_shard
from hapvr.search.duplicates import GROUPS_PLACE
from hapvr.search.index import STATE_FILE, FrameIndex
from hapvr.search.kept_answers import forget_answers
from hapvr.search.marks import Mark, keep_marks, read_marks
from hapvr.steps import watch_lists
from hapvr.steps.alerts import OUTBOX_PLACE, AlertOutbox
from hapvr.steps.duplicates import PICTURES_PLACE, rows_place
from hapvr.steps.project import REGISTRY, Project
from hapvr.steps.search_index import INDEX_NAME, remove
from hapvr.steps.sources import CORPUS_FOLDER, inspected_videos
from hapvr.steps.training import MODELS, tracker_of
from hapvr.steps.videos import content_digest, download_folder
from hapvr.tables import read_table, write_table
from hapvr.video.download import remove_fetched
from hapvr.video.sources import is_remote

DIGESTS = f"{MANIFEST_STAGE}/forgetting-digests.json"
SHARD_STAGES = (VIDEOS_STAGE, frames.STAGE, features.STAGE, VIEWS_STAGE, LABELS_STAGE)


@dataclass(frozen=True)
class ForgottenVideo:
    """contents: SHA-256 of all that its file has held, without those of videos that stay. kept_out:
    whether it is not listed again while its file is there."""

    video_id: str
    shard: str
    uri: str
    contents: Sequence[str]
    kept_out: bool


@dataclass
class Journal:
    """What was begun. digests: by the place of a shard, `_digests` of it before each call that
    changed it."""

    videos: Sequence[ForgottenVideo]
    digests: dict[str, list[list[str]]]


def read_journal(root: DataRoot) -> Journal:
    """Empty if nothing was begun. Raises DamagedError."""
    hint = "remove it, and name again what it names"
    begun, changed = root.exists(manifest.FORGETTING), root.exists(DIGESTS)
    videos = (
        root.read_json_as(manifest.FORGETTING, list[ForgottenVideo], hint=hint) if begun else []
    )
    return Journal(
        videos, root.read_json_as(DIGESTS, dict[str, list[list[str]]], hint=hint) if changed else {}
    )


@dataclass(frozen=True)
class Forgetting:
    """What is forgotten."""

    video_ids: frozenset[str]

    shards: Sequence[str]
    """Keys of the shards that have these videos, sorted."""

    values: frozenset[str]
    """Ids, places and contents: whatever holds one of them goes."""

    videos: Sequence[ForgottenVideo]

    journal: Journal

    renamed: dict[str, str]
    """Digest of a shard with the videos -> that of the shard without; filled shard by shard."""

    generated: list[str] = field(default_factory=list)
    """Folders of benchmarks that were removed, to be generated without the videos."""


Forget = Callable[[Project, Forgetting], None]
"""Removes all of some videos from one store; may be repeated."""


def forgetting_of(journal: Journal) -> Forgetting:
    """What a journal says, for the stores."""
    videos = journal.videos
    video_ids = frozenset(video.video_id for video in videos)
    values = {*video_ids, *(video.uri for video in videos)}
    for video in videos:
        values.update(video.contents)
    shards = sorted({video.shard for video in videos})
    return Forgetting(video_ids, shards, frozenset(values), videos, journal, renamed={})


def forget_in_manifest(project: Project, forgetting: Forgetting) -> None:
    """Their rows go."""
    root = project.root
    with root.lock(MANIFEST_STAGE):
        for key in forgetting.shards:
            rows = manifest.read_manifest_shard(root, key)
            staying = [row for row in rows if row.video_id not in forgetting.video_ids]
            manifest.write_manifest_shard(root, key, staying)


def forget_fetched_files(project: Project, forgetting: Forgetting) -> None:
    """Files that we fetched, and what a killed repair has set aside; a user's own stay."""
    set_aside.remove_of(project.root, forgetting.shards)
    for video in forgetting.videos:
        if is_remote(video.uri):
            remove_fetched(video.video_id, download_folder(project) / video.shard)


def forget_in_stage(stage: str) -> Forget:
    """Of the shards of a stage."""

    def forget(project: Project, forgetting: Forgetting) -> None:
        for key in forgetting.shards:
            _forget_in_shard(Shard(project.root, stage, key), forgetting)

    return forget


def forget_descriptors(project: Project, forgetting: Forgetting) -> None:
    """Of all networks, also those that a rollback goes back to."""
    root = project.root
    for digest in root.list_folders(SEARCH):
        for key in forgetting.shards:
            _forget_in_shard(descriptor_shard(root, digest, key), forgetting)


def rename_in_whitening(project: Project, forgetting: Forgetting) -> None:
    """It stays, as another one would make every feature again."""
    root = project.root
    provenance = whitening_provenance(root)
    if provenance is None:
        return
    provenance = replace(provenance, inputs=_renamed(provenance.inputs, forgetting.renamed))
    record = root.read_json(PROVENANCE_NAME) | {"provenance": provenance.to_json()}
    root.write_json(PROVENANCE_NAME, record)


def forget_in_indexes(project: Project, forgetting: Forgetting) -> None:
    """All indexes, also those that a rollback goes back to. A damaged one that answers no searches
    is removed."""
    root = project.root
    with root.lock(SEARCH):
        serving = serving_index(root)
        for place in _index_places(root):
            try:
                index = FrameIndex(root.url_of(place), project.config.search.index)
                index.forget(sorted(forgetting.video_ids), forgetting.renamed)
            except DamagedError as error:
                if serving is not None and place == serving.place:
                    raise
                warnings.warn(f"{error}. It is removed, as it does not answer searches")
                remove(root, place)


def forget_in_marks(project: Project, forgetting: Forgetting) -> None:
    """Marks of contents that go are removed; those of contents that stay under another name get
    that name."""
    root = project.root
    inspected = inspected_videos(root, manifest.shard_keys(root))
    staying = {row["sha256"]: row["video_id"] for _, row in inspected}
    kept, removed = list[Mark](), list[Mark]()
    for mark in read_marks(root).rows():
        first, second = (
            staying.get(digest, "") if name in forgetting.values else name
            for digest, name in zip((mark.first, mark.second), mark.names, strict=True)
        )
        goes = not forgetting.values.isdisjoint((mark.first, mark.second))
        if goes or not (first and second):
            removed.append(mark)
        elif (first, second) != mark.names:
            kept.append(replace(mark, names=(first, second)))
    if kept or removed:
        keep_marks(root, kept, without=removed)


def forget_in_rows(stage: str) -> Forget:
    """Of the tables of pairs, or of matches of watch lists."""

    def forget(project: Project, forgetting: Forgetting) -> None:
        root = project.root
        for key in sorted({*manifest.shard_keys(root), *root.list_folders(stage)}):
            with root.lock(f"{stage}/{key}"):  # a search that runs writes what it found before
                _forget_in_table(root, rows_place(stage, key), forgetting.values)

    return forget


def forget_in_groups(project: Project, forgetting: Forgetting) -> None:
    """What was measured of copies; the groups are removed, as they are made of the pairs."""
    root = project.root
    _forget_in_table(root, PICTURES_PLACE, forgetting.values)
    root.delete(GROUPS_PLACE)


def forget_in_watch_lists(project: Project, forgetting: Forgetting) -> None:
    """Matches, and the lists that were made of these videos."""
    root = project.root
    forget_in_rows(watch_lists.STAGE)(project, forgetting)
    for name in root.list_folders(watch_lists.LISTS):
        place = f"{watch_lists.LISTS}/{name}"
        contents = {file.partition(".")[0] for file in root.list_files(place)}
        if not contents.isdisjoint(forgetting.values):
            root.delete_folder(place)


def forget_in_answers(project: Project, forgetting: Forgetting) -> None:
    """Answers of the search service that name them, or were asked for by one of them."""
    forget_answers(project.root, forgetting.values)


def forget_in_outbox(project: Project, forgetting: Forgetting) -> None:
    """Messages that name them."""
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


def _may_show(views: Shard, gone: frozenset[str]) -> bool:
    """Whether clips of these videos are part of others' views. True for views of an older edition,
    which are rebuilt anyway."""
    data = views.open_data()
    if "host_id" not in data.schema_arrow.names:
        return True
    return not gone.isdisjoint(data.read(["host_id"])["host_id"].unique().to_pylist())


def _index_places(root: DataRoot) -> list[str]:
    places = []
    for above in map(model_place, root.list_folders(SEARCH)):
        names = [name for name in root.list_folders(above) if INDEX_NAME.fullmatch(name)]
        places += [f"{above}/{name}" for name in names]
    return [place for place in places if root.exists(f"{place}/{STATE_FILE}")]


def _forget_in_shard(shard: Shard, forgetting: Forgetting) -> None:
    """Write the shard without these videos. One that is damaged or unfinished, or shows them in
    views of others, goes: its step rebuilds it."""
    root = shard.root
    gone = forgetting.video_ids
    renamed = forgetting.renamed
    journal = forgetting.journal
    with shard.lock():
        new = Shard(root, f"{shard.stage}/{shard.key}", "new")
        _take(shard, new)
        index = _usable_index(shard, gone)
        if index is None:
            _remove_shard(shard)
            return
        before = journal.digests.setdefault(shard.index_name, [])
        before.append(_digests(shard))
        root.write_json(DIGESTS, journal.digests)
        _write_without(shard, index, new, gone, renamed)
        _take(shard, new)
        for digests in before:
            renamed.update(zip(digests, _digests(shard), strict=True))


def _usable_index(shard: Shard, gone: frozenset[str]) -> ShardIndex | None:
    """The index of a shard that is finished and whole, and does not show these videos in others."""
    index = shard.find()
    if index is None:
        return None
    try:
        shard.verify()
    except DamagedError:
        return None
    if index.data_sha256 and shard.stage in (VIEWS_STAGE, LABELS_STAGE):
        return None if _may_show(shard, gone) else index
    return index


def _remove_shard(shard: Shard) -> None:
    for name in (shard.index_name, shard.data_name):
        shard.root.delete(name)
        shard.root.delete(f"{name}{PART_SUFFIX}")


def _write_without(
    shard: Shard,
    index: ShardIndex,
    new: Shard,
    gone: frozenset[str],
    renamed: Mapping[str, str],
) -> None:
    """Write the rows of the videos that stay to another place."""
    if index.data_sha256:
        videos = VideoRows(shard)
        with new.write_data(list(shard.open_data().schema_arrow)) as write:
            for video_id in videos.video_ids:
                if video_id not in gone:
                    write(videos.rows(video_id).columns)
    rows = [row for row in index.rows() if row["video_id"] not in gone]
    common = {field.name for field in INDEX_FIELDS}
    own = [field for field in index.table.schema if field.name not in common]
    inputs = index.provenance.inputs  # of `videos`, one of each video
    staying = {name: digest for name, digest in inputs.items() if name not in gone}
    provenance = replace(index.provenance, inputs=_renamed(staying, renamed))
    new.write_index(rows, provenance=provenance, fields=own)


def _take(shard: Shard, new: Shard) -> None:
    """Put what was written anew in the place of a shard, where that is finished; a killed call is
    gone on with."""
    root = shard.root
    if root.exists(new.index_name):
        if root.exists(new.data_name):
            root.delete(shard.index_name)
            root.filesystem.move(root.path(new.data_name), root.path(shard.data_name))
        root.filesystem.move(root.path(new.index_name), root.path(shard.index_name))
    root.delete_folder(f"{new.stage}/{new.key}")


def _digests(shard: Shard) -> list[str]:
    """What other shards, indexes and the whitening know the shard by."""
    more = {
        VIDEOS_STAGE: lambda: content_digest(shard.rows()),
        frames.STAGE: lambda: frames.frames_digest(shard),
    }
    return [
        shard.digest(),
        shard.read().data_sha256,
        *([more[shard.stage]()] if shard.stage in more else []),
    ]


def _renamed(inputs: Mapping[str, str], renamed: Mapping[str, str]) -> dict[str, str]:
    return {name: renamed.get(digest, digest) for name, digest in inputs.items()}


def _forget_in_table(root: DataRoot, place: str, values: frozenset[str]) -> bool:
    """Remove the rows in which a text is one of these values; returns whether there were any. A
    damaged table goes."""
    if not root.exists(place):
        return False
    try:
        with root.open(place) as file, root.corruption_errors(place, hint="it is made again"):
            table = kept = read_table(pa.BufferReader(file.read()))
    except DamagedError:
        root.delete(place)
        return False
    for column in table.schema:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            named = values & {*kept[column.name].unique().to_pylist()}
            kept = kept.filter(
                pc.invert(
                    pc.is_in(kept[column.name], value_set=pa.array(sorted(named), column.type))
                )
            )
    if len(kept) < len(table):
        with root.write(place) as stream:
            write_table(kept, stream)
    return len(kept) < len(table)


def forget_in_trainings(project: Project, forgetting: Forgetting) -> None:
    """Scores, in the folders of trainings and among the artifacts of all runs, also deleted
    ones."""
    root = project.root
    values = forgetting.values
    if root.local is None:
        return
    models = root.local_path(MODELS).resolve()
    for path in models.glob("*/benchmarks/**/*.parquet"):
        if path.resolve() == path:  # what is linked is not ours
            _forget_in_table(root, f"{MODELS}/{path.relative_to(models).as_posix()}", values)
    if not (root.exists(REGISTRY) or project.config.tracking.uri):
        return
    tracker = tracker_of(project)
    with tempfile.TemporaryDirectory() as temporary:
        copies = DataRoot(temporary)
        for run_id, place in tracker.tables():
            path = tracker.client.download_artifacts(run_id, place, temporary)
            if _forget_in_table(copies, Path(path).relative_to(temporary).as_posix(), values):
                tracker.client.log_artifact(run_id, path, place.rpartition("/")[0])


def mentions(root: DataRoot, name: str, values: Collection[str]) -> bool:
    """Whether a generated benchmark was made of one of these contents."""
    place = f"{CORPUS_FOLDER}/{name}/benchmark.json"
    if not root.exists(place):
        return False
    with root.open(place) as file:
        text = file.read().decode(errors="replace")
    return any(value in text for value in values)
