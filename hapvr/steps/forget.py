"""Forgetting videos: what was made of them goes from every stage, the indexes and MLflow; a user's
own files stay.

What is asked for is in manifest.FORGETTING until all of it is done, so the next call finishes one
that was killed. Shards are written without the rows, in the order of the chain. What was made from
one of them then names it by its new digest, so it counts as done as before, and nothing is decoded
again.
"""

import os
import tempfile
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from hapvr.data import features, frames, manifest
from hapvr.data.features import LABELS_STAGE, VIEWS_STAGE
from hapvr.data.filesystem import ASIDE, DataRoot
from hapvr.data.manifest import MANIFEST_STAGE, VIDEOS_STAGE
from hapvr.data.shards import INDEX_FIELDS, Shard, VideoRows
from hapvr.errors import ArgumentError, DamagedError
from hapvr.files import PART_SUFFIX
from hapvr.networks.whitening import PROVENANCE_NAME, whitening_provenance
from hapvr.search.collection import FOLDER as SEARCH, model_place, serving_index
from hapvr.search.descriptors import descriptor_shard
from hapvr.search.duplicates import GROUPS_PLACE
from hapvr.search.index import STATE_FILE, FrameIndex
from hapvr.search.marks import Mark, keep_marks, read_marks
from hapvr.steps import watch_lists
from hapvr.steps.alerts import OUTBOX_PLACE, AlertOutbox
from hapvr.steps.duplicates import PAIRS_STAGE, PICTURES_PLACE, rows_place
from hapvr.steps.project import REGISTRY, Project
from hapvr.steps.search_index import INDEX_NAME, remove
from hapvr.steps.sources import CORPUS_FOLDER, inspected_videos, make_manifest
from hapvr.steps.training import MODELS, tracker_of
from hapvr.steps.videos import content_digest, download_folder
from hapvr.tables import read_table, write_table
from hapvr.video.download import remove_fetched
from hapvr.video.settings import PARTS
from hapvr.video.sources import is_remote, path_of_text

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


def plan_forgetting(
    project: Project, video_ids: Sequence[str], *, offline: str = ""
) -> list[ForgottenVideo]:
    """These videos, those of the source `offline` whose files are gone, copies that were generated
    of them for benchmarks, and what a killed call has left. Raises ArgumentError for an unknown id
    or source, or if there is nothing to forget, and as `Shard.read` does."""
    root = project.root
    listed = {row["video_id"]: row for row in manifest.manifest_table(root).to_pylist()}
    videos = {one.video_id: one for one in read_journal(root).videos}
    if unknown := [one for one in video_ids if one not in listed and one not in videos]:
        raise ArgumentError(
            f"forget: {unknown[0]!r:.200} is not a video of the manifest; wanted an id such "
            "as SOURCE/NAME.mp4"
        )
    of_source = [
        row for row in listed.values() if row["source"] in {f"{offline}{part}" for part in PARTS}
    ]
    local = (row for row in of_source if not is_remote(row["uri"]))
    wanted = {
        row["video_id"]: False for row in local if not os.path.exists(path_of_text(row["uri"]))
    }
    wanted |= dict.fromkeys(video_ids, True)
    shards = [
        [Shard(root, stage, key) for stage in (VIDEOS_STAGE, frames.STAGE)]
        for key in manifest.shard_keys(root)
    ]
    inspected = [made[0] for made in shards if any(root.exists(shard.index_name) for shard in made)]
    rows = [row for shard in inspected for row in shard.rows()]
    contents = {
        row["video_id"]: {row["sha256"], *(row.get("former_sha256") or "").split()} - {""}
        for row in rows
    }
    digests = set[str]().union(
        *(contents.get(one, ()) for one in wanted), *(one.contents for one in videos.values())
    )
    for name in root.list_folders(CORPUS_FOLDER):
        if _mentions(root, name, digests):
            wanted = {
                row["video_id"]: False for row in listed.values() if row["source"] == name
            } | wanted
    kept = {row["sha256"] for row in rows if row["video_id"] not in wanted.keys() | videos.keys()}
    for one in wanted.keys() & listed.keys():
        place = (listed[one]["shard"], listed[one]["uri"], sorted(contents.get(one, set()) - kept))
        videos[one] = ForgottenVideo(one, *place, wanted[one])
    if not videos:
        raise ArgumentError(
            "forget: there is nothing to forget; name videos, or a source whose files are gone"
        )
    return [videos[one] for one in sorted(videos)]


def forget(project: Project, videos: Sequence[ForgottenVideo]) -> None:
    """Remove all that was made of the videos; may be repeated. Raises DataError where something
    cannot be reached."""
    root, renamed = project.root, dict[str, str]()
    with root.lock("forget"):
        journal = read_journal(root)  # another call may have begun since these were planned
        journal.videos = videos = list(
            {one.video_id: one for one in (*journal.videos, *videos)}.values()
        )
        root.write_json(manifest.FORGETTING, [asdict(one) for one in videos])
        gone, keys = (
            frozenset(one.video_id for one in videos),
            sorted({one.shard for one in videos}),
        )
        values = frozenset(
            {*gone, *(one.uri for one in videos)}.union(*(one.contents for one in videos))
        )
        names = {
            manifest.name_digest(name)
            for one in videos
            if one.kept_out
            for name in (one.video_id, one.uri)
        }
        root.write_json(
            manifest.FORGOTTEN, {"names": sorted(names | manifest.forgotten_digests(root))}
        )
        with root.lock(MANIFEST_STAGE):
            for key in keys:
                rows = manifest.read_manifest_shard(root, key)
                manifest.write_manifest_shard(
                    root, key, [row for row in rows if row.video_id not in gone]
                )
        for one in (one for one in videos if is_remote(one.uri)):
            remove_fetched(one.video_id, download_folder(project) / one.shard)
        networks = root.list_folders(SEARCH)
        for key in keys:
            described = [descriptor_shard(root, digest, key) for digest in networks]
            for shard in (*(Shard(root, stage, key) for stage in SHARD_STAGES), *described):
                _forget_in_shard(shard, gone, renamed, journal)
        if (
            found := whitening_provenance(root)
        ) is not None:  # another one would make every feature again
            provenance = replace(found, inputs=_renamed(found.inputs, renamed))
            root.write_json(
                PROVENANCE_NAME,
                root.read_json(PROVENANCE_NAME) | {"provenance": provenance.to_json()},
            )
        with root.lock(SEARCH):
            serving = serving_index(root)
            # also the indexes that a rollback goes back to
            for above in map(model_place, networks):
                for place in (
                    f"{above}/{name}"
                    for name in root.list_folders(above)
                    if INDEX_NAME.fullmatch(name)
                ):
                    if root.exists(f"{place}/{STATE_FILE}"):
                        try:
                            FrameIndex(root.url_of(place), project.config.search.index).forget(
                                sorted(gone), renamed
                            )
                        except DamagedError as error:
                            if serving is not None and place == serving.place:
                                raise
                            warnings.warn(f"{error}. It is removed, as it does not answer searches")
                            remove(root, place)
        staying = {
            row["sha256"]: row["video_id"]
            for _, row in inspected_videos(root, manifest.shard_keys(root))
        }
        marks, unmarked = list[Mark](), list[Mark]()
        for mark in read_marks(root).rows():
            both = tuple(zip((mark.first, mark.second), mark.names, strict=True))
            first, second = (
                staying.get(digest, "") if name in values else name for digest, name in both
            )
            if not values.isdisjoint((mark.first, mark.second)) or not (first and second):
                unmarked.append(mark)
            elif (first, second) != mark.names:  # the content stays, under another name
                marks.append(replace(mark, names=(first, second)))
        if marks or unmarked:
            keep_marks(root, marks, without=unmarked)
        known = {
            *manifest.shard_keys(root),
            *root.list_folders(PAIRS_STAGE),
            *root.list_folders(watch_lists.STAGE),
        }
        tables = [
            (stage, key) for stage in (PAIRS_STAGE, watch_lists.STAGE) for key in sorted(known)
        ]
        for stage, key in tables:
            with root.lock(f"{stage}/{key}"):  # a search that runs writes what it found before
                _forget_in_table(root, rows_place(stage, key), values)
        _forget_in_table(root, PICTURES_PLACE, values)
        for place in (
            f"{watch_lists.LISTS}/{name}" for name in root.list_folders(watch_lists.LISTS)
        ):
            if any(file.partition(".")[0] in values for file in root.list_files(place)):
                root.delete_folder(place)
        root.delete(GROUPS_PLACE)  # they are made again of the pairs
        if root.exists(OUTBOX_PLACE):
            AlertOutbox(root).forget(values)
        generated = [
            name for name in root.list_folders(CORPUS_FOLDER) if _mentions(root, name, values)
        ]
        for name in generated:
            root.delete_folder(f"{CORPUS_FOLDER}/{name}")
        _forget_in_trainings(project, values)
        root.delete(DIGESTS)
        root.delete(manifest.FORGETTING)
    if generated:
        make_manifest(project)


def _may_show(views: Shard, gone: frozenset[str]) -> bool:
    """Whether clips of these videos are part of others' views. True for views of an older edition,
    which are rebuilt anyway."""
    data = views.open_data()
    if "host_id" not in data.schema_arrow.names:
        return True
    return not gone.isdisjoint(data.read(["host_id"])["host_id"].unique().to_pylist())


def _forget_in_shard(
    shard: Shard, gone: frozenset[str], renamed: dict[str, str], journal: Journal
) -> None:
    """Write the shard without these videos. One that is damaged or unfinished, or shows them in
    views of others, goes: its step makes it again. renamed: digest of what others are made from ->
    its new one; gets those of this shard."""
    root = shard.root
    with shard.lock():
        root.delete_folder(f"{ASIDE}/{shard.stage}/{shard.key}")
        new = Shard(root, f"{shard.stage}/{shard.key}", "new")
        _take(shard, new)
        try:
            if (found := shard.find()) is not None:
                shard.verify()
        except DamagedError:
            found = None
        has_views = shard.stage in (VIEWS_STAGE, LABELS_STAGE)
        if found is not None and found.data_sha256 and has_views and _may_show(shard, gone):
            found = None
        if found is None:
            for name in (shard.index_name, shard.data_name):
                root.delete(name)
                root.delete(f"{name}{PART_SUFFIX}")
            return
        inputs, before = found.provenance.inputs, journal.digests.setdefault(shard.index_name, [])
        before.append(_digests(shard))
        root.write_json(DIGESTS, journal.digests)
        kept = {
            name: value for name, value in inputs.items() if name not in gone
        }  # `videos` has one of each video
        rows = [row for row in found.rows() if row["video_id"] not in gone]
        own = [
            one
            for one in found.table.schema
            if one.name not in {known.name for known in INDEX_FIELDS}
        ]
        if found.data_sha256:
            videos = VideoRows(shard)
            with new.write_data(list(shard.open_data().schema_arrow)) as write:
                for video_id in (video_id for video_id in videos.video_ids if video_id not in gone):
                    write(videos.rows(video_id).columns)
        provenance = replace(found.provenance, inputs=_renamed(kept, renamed))
        new.write_index(rows, provenance=provenance, fields=own)
        _take(shard, new)
        for digests in before:
            renamed.update(zip(digests, _digests(shard), strict=True))


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


def _forget_in_trainings(project: Project, values: frozenset[str]) -> None:
    """Scores, in the folders of trainings and among the artifacts of all runs, also deleted
    ones."""
    root = project.root
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


def _mentions(root: DataRoot, name: str, values: Collection[str]) -> bool:
    """Whether a generated benchmark was made of one of these contents."""
    place = f"{CORPUS_FOLDER}/{name}/benchmark.json"
    if not root.exists(place):
        return False
    with root.open(place) as file:
        text = file.read().decode(errors="replace")
    return any(value in text for value in values)
