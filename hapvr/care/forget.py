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
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hapvr.data import features, frames, manifest, set_aside
from hapvr.data.features import LABELS_STAGE, VIEWS_STAGE
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import MANIFEST_STAGE, VIDEOS_STAGE
from hapvr.data.shards import INDEX_FIELDS, Shard, ShardIndex, VideoRows
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
    of them for benchmarks, and what a killed call has left.

    Raises ArgumentError for an unknown id or source, or if there is nothing to forget, and as
    `Shard.read` does.
    """
    root = project.root
    listed = {row["video_id"]: row for row in manifest.manifest_table(root).to_pylist()}
    begun = {video.video_id: video for video in read_journal(root).videos}
    _require_known(video_ids, listed.keys() | begun.keys())
    wanted = _offline_videos(listed, offline)
    wanted |= dict.fromkeys(video_ids, True)
    rows = _inspected_rows(root)
    contents = {row["video_id"]: _contents(row) for row in rows}
    wanted = _generated_of(root, listed, wanted, contents, begun) | wanted
    going = wanted.keys() | begun.keys()
    staying = {row["sha256"] for row in rows if row["video_id"] not in going}
    videos = dict(begun)
    for video_id in wanted.keys() & listed.keys():
        videos[video_id] = ForgottenVideo(
            video_id,
            shard=listed[video_id]["shard"],
            uri=listed[video_id]["uri"],
            contents=sorted(contents.get(video_id, set()) - staying),
            kept_out=wanted[video_id],
        )
    if not videos:
        raise ArgumentError(
            "forget: there is nothing to forget; name videos, or a source whose files are gone"
        )
    return [videos[video_id] for video_id in sorted(videos)]


def _require_known(video_ids: Sequence[str], known: Collection[str]) -> None:
    for video_id in video_ids:
        if video_id not in known:
            raise ArgumentError(
                f"forget: {video_id!r:.200} is not a video of the manifest; wanted an id such "
                "as SOURCE/NAME.mp4"
            )


def _offline_videos(listed: Mapping[str, Mapping[str, str]], source: str) -> dict[str, bool]:
    """The local videos of a source whose files are gone; they may be listed again."""
    names = {f"{source}{part}" for part in PARTS}
    found = {}
    for video_id, row in listed.items():
        if row["source"] not in names or is_remote(row["uri"]):
            continue
        if not os.path.exists(path_of_text(row["uri"])):
            found[video_id] = False
    return found


def _inspected_rows(root: DataRoot) -> list[dict[str, Any]]:
    """What the steps `videos` and `frames` wrote down of each video."""
    rows = []
    for key in manifest.shard_keys(root):
        shards = [Shard(root, stage, key) for stage in (VIDEOS_STAGE, frames.STAGE)]
        if any(root.exists(shard.index_name) for shard in shards):
            rows += shards[0].rows()
    return rows


def _contents(row: Mapping[str, Any]) -> set[str]:
    """SHA-256 of all that the file of a video has held."""
    former = (row.get("former_sha256") or "").split()
    return {row["sha256"], *former} - {""}


def _generated_of(
    root: DataRoot,
    listed: Mapping[str, Mapping[str, str]],
    wanted: Collection[str],
    contents: Mapping[str, Collection[str]],
    begun: Mapping[str, ForgottenVideo],
) -> dict[str, bool]:
    """All videos of benchmarks that were generated of these; they may be listed again."""
    digests = set[str]()
    for video_id in wanted:
        digests.update(contents.get(video_id, ()))
    for video in begun.values():
        digests.update(video.contents)
    found = {}
    for name in root.list_folders(CORPUS_FOLDER):
        if _mentions(root, name, digests):
            of_name = [video_id for video_id, row in listed.items() if row["source"] == name]
            found |= dict.fromkeys(of_name, False)
    return found


@dataclass(frozen=True)
class Forgetting:
    """What is forgotten."""

    video_ids: frozenset[str]

    shards: Sequence[str]
    """Keys of the shards that have these videos, sorted."""

    values: frozenset[str]
    """Ids, places and contents: whatever holds one of them goes."""

    renamed: dict[str, str]
    """Digest of a shard with the videos -> that of the shard without; filled shard by shard."""


def forget(project: Project, videos: Sequence[ForgottenVideo]) -> None:
    """Remove all that was made of the videos; may be repeated. Raises DataError where something
    cannot be reached."""
    root = project.root
    with root.care_lock():
        set_aside.put_back_unreplaced(root)
        journal = _begin(root, videos)
        forgetting = _forgetting_of(journal.videos)
        _forget_in_manifest(root, forgetting)
        _forget_fetched_files(project, journal.videos, forgetting)
        _forget_in_shards(root, forgetting, journal)
        _rename_in_whitening(root, forgetting)
        _forget_in_indexes(project, forgetting)
        _forget_in_marks(root, forgetting)
        _forget_in_tables(root, forgetting)
        _forget_in_outbox(root, forgetting)
        generated = _forget_generated(root, forgetting)
        _forget_in_trainings(project, forgetting.values)
        root.delete(DIGESTS)
        root.delete(manifest.FORGETTING)
    if generated:
        make_manifest(project)


def _begin(root: DataRoot, videos: Sequence[ForgottenVideo]) -> Journal:
    """Write down what is to be forgotten, with what another call has begun since it was planned."""
    journal = read_journal(root)
    all_videos = {video.video_id: video for video in (*journal.videos, *videos)}
    journal.videos = list(all_videos.values())
    root.write_json(manifest.FORGETTING, [asdict(video) for video in journal.videos])
    names = set(manifest.forgotten_digests(root))
    for video in journal.videos:
        if video.kept_out:
            names |= {manifest.name_digest(video.video_id), manifest.name_digest(video.uri)}
    root.write_json(manifest.FORGOTTEN, {"names": sorted(names)})
    return journal


def _forgetting_of(videos: Sequence[ForgottenVideo]) -> Forgetting:
    video_ids = frozenset(video.video_id for video in videos)
    values = {*video_ids, *(video.uri for video in videos)}
    for video in videos:
        values.update(video.contents)
    shards = sorted({video.shard for video in videos})
    return Forgetting(video_ids, shards, frozenset(values), renamed={})


def _forget_in_manifest(root: DataRoot, forgetting: Forgetting) -> None:
    with root.lock(MANIFEST_STAGE):
        for key in forgetting.shards:
            rows = manifest.read_manifest_shard(root, key)
            staying = [row for row in rows if row.video_id not in forgetting.video_ids]
            manifest.write_manifest_shard(root, key, staying)


def _forget_fetched_files(
    project: Project, videos: Sequence[ForgottenVideo], forgetting: Forgetting
) -> None:
    """Files that we fetched, and what a killed repair has set aside; a user's own stay."""
    set_aside.remove_of(project.root, forgetting.shards)
    for video in videos:
        if is_remote(video.uri):
            remove_fetched(video.video_id, download_folder(project) / video.shard)


def _forget_in_shards(root: DataRoot, forgetting: Forgetting, journal: Journal) -> None:
    networks = root.list_folders(SEARCH)
    for key in forgetting.shards:
        shards = [Shard(root, stage, key) for stage in SHARD_STAGES]
        shards += [descriptor_shard(root, digest, key) for digest in networks]
        for shard in shards:
            _forget_in_shard(shard, forgetting.video_ids, forgetting.renamed, journal)


def _rename_in_whitening(root: DataRoot, forgetting: Forgetting) -> None:
    """It stays, as another one would make every feature again."""
    provenance = whitening_provenance(root)
    if provenance is None:
        return
    provenance = replace(provenance, inputs=_renamed(provenance.inputs, forgetting.renamed))
    record = root.read_json(PROVENANCE_NAME) | {"provenance": provenance.to_json()}
    root.write_json(PROVENANCE_NAME, record)


def _forget_in_indexes(project: Project, forgetting: Forgetting) -> None:
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


def _index_places(root: DataRoot) -> list[str]:
    places = []
    for above in map(model_place, root.list_folders(SEARCH)):
        names = [name for name in root.list_folders(above) if INDEX_NAME.fullmatch(name)]
        places += [f"{above}/{name}" for name in names]
    return [place for place in places if root.exists(f"{place}/{STATE_FILE}")]


def _forget_in_marks(root: DataRoot, forgetting: Forgetting) -> None:
    """Marks of contents that go are removed; those of contents that stay under another name get
    that name."""
    inspected = inspected_videos(root, manifest.shard_keys(root))
    staying = {row["sha256"]: row["video_id"] for _, row in inspected}
    kept, removed = list[Mark](), list[Mark]()
    for mark in read_marks(root).rows():
        names = tuple(
            staying.get(digest, "") if name in forgetting.values else name
            for digest, name in zip((mark.first, mark.second), mark.names, strict=True)
        )
        first, second = names
        goes = not forgetting.values.isdisjoint((mark.first, mark.second))
        if goes or not (first and second):
            removed.append(mark)
        elif (first, second) != mark.names:
            kept.append(replace(mark, names=(first, second)))
    if kept or removed:
        keep_marks(root, kept, without=removed)


def _forget_in_tables(root: DataRoot, forgetting: Forgetting) -> None:
    """Pairs, watch lists and their matches, and what was measured of copies. Groups are removed, as
    they are made of the pairs."""
    keys = {
        *manifest.shard_keys(root),
        *root.list_folders(PAIRS_STAGE),
        *root.list_folders(watch_lists.STAGE),
    }
    for stage in (PAIRS_STAGE, watch_lists.STAGE):
        for key in sorted(keys):
            with root.lock(f"{stage}/{key}"):  # a search that runs writes what it found before
                _forget_in_table(root, rows_place(stage, key), forgetting.values)
    _forget_in_table(root, PICTURES_PLACE, forgetting.values)
    for name in root.list_folders(watch_lists.LISTS):
        place = f"{watch_lists.LISTS}/{name}"
        contents = {file.partition(".")[0] for file in root.list_files(place)}
        if not contents.isdisjoint(forgetting.values):
            root.delete_folder(place)
    root.delete(GROUPS_PLACE)


def _forget_in_outbox(root: DataRoot, forgetting: Forgetting) -> None:
    if root.exists(OUTBOX_PLACE):
        AlertOutbox(root).forget(forgetting.values)


def _forget_generated(root: DataRoot, forgetting: Forgetting) -> bool:
    """Remove benchmarks that were generated of the videos; returns whether there were any."""
    folders = root.list_folders(CORPUS_FOLDER)
    generated = [name for name in folders if _mentions(root, name, forgetting.values)]
    for name in generated:
        root.delete_folder(f"{CORPUS_FOLDER}/{name}")
    return bool(generated)


def _forget_in_shard(
    shard: Shard, gone: frozenset[str], renamed: dict[str, str], journal: Journal
) -> None:
    """Write the shard without these videos. One that is damaged or unfinished, or shows them in
    views of others, goes: its step rebuilds it. renamed: digest of what others are made from -> its
    new one; gets those of this shard."""
    root = shard.root
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
        donors = shard.open_data().read(["donor_id"])["donor_id"].unique().to_pylist()
        return index if gone.isdisjoint(donors) else None
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
