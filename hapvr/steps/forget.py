"""Forgetting videos: what was made of them goes from every stage, the indexes and MLflow; a user's own files stay.

What is asked for is in JOURNAL until all of it is done, so the next call finishes one that was killed. Shards are written
without the rows, in the order of the chain, and what was done before counts as done afterwards: nothing is decoded again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hapvr.data.features import ROW_GROUP_ROWS as FEATURE_ROWS
from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.filesystem import ASIDE, DataRoot
from hapvr.data.frames import ROW_GROUP_ROWS as FRAME_ROWS
from hapvr.data.frames import STAGE as FRAMES_STAGE
from hapvr.data.frames import frames_digest
from hapvr.data.manifest import (
    MANIFEST_STAGE,
    VIDEOS_STAGE,
    forget_names,
    manifest_table,
    read_manifest_shard,
    shard_keys,
    write_manifest_shard,
)
from hapvr.data.shards import INDEX_FIELDS, Shard, ShardIndex, VideoRows
from hapvr.data.views import EMBEDDINGS_STAGE, LABELS_STAGE, VIEWS_STAGE
from hapvr.errors import ArgumentError, DamagedError, DataError
from hapvr.files import PART_SUFFIX
from hapvr.networks.whitening import PROVENANCE_NAME, whitening_provenance
from hapvr.search.collection import CURRENT, current_index, model_place
from hapvr.search.collection import FOLDER as SEARCH
from hapvr.search.descriptors import ROW_GROUP_ROWS as DESCRIPTOR_ROWS
from hapvr.search.descriptors import descriptor_shard
from hapvr.search.index import STATE_FILE, FrameIndex
from hapvr.search.marks import forget_marks
from hapvr.steps.alerts import OUTBOX_PLACE, AlertOutbox
from hapvr.steps.duplicates import (
    GROUPS_PLACE,
    MARKED_PLACE,
    PAIRS_STAGE,
    PAIRS_VERSION,
    PICTURES_PLACE,
    outdated_duplicates,
)
from hapvr.steps.frames import content_digest
from hapvr.steps.project import Project, full_disk_is_named
from hapvr.steps.search_index import INDEX_NAME
from hapvr.steps.searcher import search_fingerprint
from hapvr.steps.sources import CORPUS_FOLDER, PARTS, make_manifest
from hapvr.steps.training import MODELS, tracker_of
from hapvr.steps.videos import download_folder
from hapvr.steps.watch_lists import STAGE as WATCH_STAGE
from hapvr.steps.watch_lists import asked_of, unwatched_shards, watch_queries
from hapvr.tables import read_table, write_table
from hapvr.train.labelled_pairs import LABELLED_NAME, read_labelled_pairs, write_labelled_pairs
from hapvr.video.download import remove_fetched
from hapvr.video.sources import is_remote, path_of_text

JOURNAL = f"{MANIFEST_STAGE}/forgetting.json"
SHARD_STAGES = (VIDEOS_STAGE, FRAMES_STAGE, FEATURES_STAGE, VIEWS_STAGE, EMBEDDINGS_STAGE, LABELS_STAGE)
GROUP_ROWS = {FRAMES_STAGE: FRAME_ROWS, FEATURES_STAGE: FEATURE_ROWS, **dict.fromkeys(SHARD_STAGES[3:])}
"""Rows of a row group, None: those of a video."""


@dataclass(frozen=True)
class ForgottenVideo:
    """sha256: of its content, "" where that is unknown or a video that stays has it, too. kept_out: whether it is not
    listed again while its file is there."""

    video_id: str
    shard: str
    uri: str
    sha256: str
    kept_out: bool


@dataclass(frozen=True)
class Forgetting:
    """What is to be forgotten. current: places of what was up to date before, and is to be so afterwards."""

    videos: tuple[ForgottenVideo, ...]
    current: tuple[str, ...]

    @property
    def video_ids(self) -> list[str]:
        return [one.video_id for one in self.videos]

    @property
    def shards(self) -> list[str]:
        return sorted({one.shard for one in self.videos})


def plan_forgetting(project: Project, video_ids: Sequence[str], *, offline: str = "") -> Forgetting:
    """These videos, those of the source `offline` whose files are gone, copies that were generated of them for benchmarks,
    and what a killed call has left. Nothing is changed. Raises ArgumentError for an unknown id or source, or if there is
    nothing to forget."""
    root = project.root
    manifest = {row["video_id"]: row for row in manifest_table(root).to_pylist()}
    begun = root.read_json(JOURNAL) if root.exists(JOURNAL) else {"videos": [], "current": []}
    left = {one["video_id"]: ForgottenVideo(**one) for one in begun["videos"]}
    if unknown := [one for one in video_ids if one not in manifest and one not in left]:
        raise ArgumentError(
            f"forget: {unknown[0]!r:.200} is not a video of the manifest; wanted an id such as SOURCE/NAME.mp4"
        )
    sources = [f"{offline}{part}" for part in PARTS]
    if offline and not any(row["source"] in sources for row in manifest.values()):
        raise ArgumentError(f"--offline {offline!r:.80}: the manifest has no source of this name")
    gone = {
        row["video_id"]
        for row in manifest.values()
        if row["source"] in sources and not is_remote(row["uri"]) and not path_of_text(row["uri"]).exists()
    }
    wanted = dict.fromkeys(gone, False) | dict.fromkeys(video_ids, True)
    contents = _contents(root)
    digests = {contents[one] for one in wanted if one in contents} | {one.sha256 for one in left.values()} - {""}
    for name in root.list_folders(CORPUS_FOLDER):
        if _mentions(root, name, digests):
            wanted = {row["video_id"]: False for row in manifest.values() if row["source"] == name} | wanted
    kept = {sha256 for one, sha256 in contents.items() if one not in wanted and one not in left}
    videos = dict(left)
    for one in wanted.keys() & manifest.keys():
        sha256 = contents.get(one, "")
        place = (manifest[one]["shard"], manifest[one]["uri"], "" if sha256 in kept else sha256)
        videos[one] = ForgottenVideo(one, *place, wanted[one])
    if not videos:
        raise ArgumentError("forget: there is nothing to forget; name videos, or a source whose files are gone")
    new = {videos[one].shard for one in wanted if one not in left}
    current = sorted({*begun["current"], *(_current(project, new) if new else ())})
    return Forgetting(tuple(videos[one] for one in sorted(videos)), tuple(current))


@full_disk_is_named("run the command again")
def forget(project: Project, asked: Forgetting) -> None:
    """Remove all that was made of the videos; may be repeated. Raises DataError where something cannot be reached."""
    root, gone = project.root, frozenset(asked.video_ids)
    values = frozenset({*gone, *(one.uri for one in asked.videos), *(one.sha256 for one in asked.videos)} - {""})
    with root.lock("forget"):
        root.write_json(JOURNAL, {"videos": [asdict(one) for one in asked.videos], "current": asked.current})
        forget_names(root, [name for one in asked.videos if one.kept_out for name in (one.video_id, one.uri)])
        with root.lock(MANIFEST_STAGE):
            for key in asked.shards:
                rows = read_manifest_shard(root, key)
                write_manifest_shard(root, key, [row for row in rows if row.video_id not in gone])
        for one in (one for one in asked.videos if is_remote(one.uri)):
            remove_fetched(one.video_id, download_folder(project) / one.shard)
        for shard in (shard for key in asked.shards for shard in _shards(root, key)):
            _forget_in_shard(shard, gone, current=shard.index_name in asked.current)
        _restamp_whitening(root, asked.shards)
        with root.lock(SEARCH):
            for place in _indexes(root):
                described = _described(root, place, asked.shards).items()
                digests = {key: digest for key, digest in described if f"{place}/{key}" in asked.current}
                index = FrameIndex.open(root.url_of(place), settings=project.config.search.index)
                index.forget(asked.video_ids, digests)
        forget_marks(root, values, gone)
        _forget_in_tables(project, asked, values)
        if root.exists(OUTBOX_PLACE):
            AlertOutbox(root).forget(values)
        made = [name for name in root.list_folders(CORPUS_FOLDER) if _mentions(root, name, values)]
        for name in made:
            root.delete_folder(f"{CORPUS_FOLDER}/{name}")
        _forget_in_trainings(project, values)
        root.delete(JOURNAL)
    if made:
        make_manifest(project)


def _shards(root: DataRoot, key: str) -> list[Shard]:
    """All shards of a key, each after its inputs."""
    described = [descriptor_shard(root, digest, key) for digest in root.list_folders(SEARCH)]
    return [*(Shard(root, stage, key) for stage in SHARD_STAGES), *described]


def _inputs(shard: Shard) -> Mapping[str, str]:
    """What a shard of frames or later would be made from now. Raises DataError where that is unfinished."""
    root, key = shard.root, shard.key
    if shard.stage == FRAMES_STAGE:
        return {VIDEOS_STAGE: content_digest(Shard(root, VIDEOS_STAGE, key).rows())}
    if shard.stage == LABELS_STAGE:
        return {EMBEDDINGS_STAGE: Shard(root, EMBEDDINGS_STAGE, key).data_digest()}
    if shard.stage in SHARD_STAGES:
        return {FRAMES_STAGE: frames_digest(Shard(root, FRAMES_STAGE, key))}
    return {FEATURES_STAGE: Shard(root, FEATURES_STAGE, key).digest()}


def _current(project: Project, keys: Collection[str]) -> Iterator[str]:
    """Places of the shards, index entries, pairs and watch matches of these keys that are up to date; of watch matches of all,
    since they depend on marks."""
    root = project.root
    for shard in (shard for key in keys for shard in _shards(root, key)[1:]):
        with suppress(DataError):
            if shard.read().provenance.inputs == _inputs(shard):
                yield shard.index_name
    for place in _indexes(root):
        held = FrameIndex.open(root.url_of(place), settings=project.config.search.index).shard_digests()
        yield from (
            f"{place}/{key}" for key, digest in _described(root, place, keys).items() if held.get(key) == digest
        )
    if root.exists(CURRENT):
        indexed = current_index(root).shards(root).keys()
        with suppress(DataError):  # features of some shard are unfinished
            yield from (f"{PAIRS_STAGE}/{key}" for key in indexed - outdated_duplicates(project).uncompared.keys())
            yield from (f"{WATCH_STAGE}/{key}" for key in indexed - unwatched_shards(project).keys())


def _forget_in_shard(shard: Shard, gone: frozenset[str], *, current: bool) -> None:
    """Write the shard without these videos. One that is damaged or unfinished, or shows them in views of others, goes: its
    step makes it again."""
    root = shard.root
    with shard.lock():
        root.delete_folder(f"{ASIDE}/{shard.stage}/{shard.key}")
        found = shard.find()
        try:
            if found is None or _shows(shard, found, gone):
                raise DamagedError("")
            inputs: Mapping[str, str] = found.provenance.inputs
            if shard.stage == VIDEOS_STAGE:
                inputs = {video_id: state for video_id, state in inputs.items() if video_id not in gone}
            elif current:
                with suppress(DataError):  # damaged before
                    inputs = _inputs(shard)
            rows = [row for row in found.rows() if row["video_id"] not in gone]
            own = [field for field in found.table.schema if field.name not in {one.name for one in INDEX_FIELDS}]
            writer = _write_data(shard, found, gone) if found.data_sha256 else None
            shard.write_index(rows, provenance=replace(found.provenance, inputs=inputs), fields=own, data=writer)
        except DamagedError:
            for name in (shard.index_name, shard.data_name):
                root.delete(name)
                root.delete(f"{name}{PART_SUFFIX}")


def _shows(shard: Shard, found: ShardIndex, gone: frozenset[str]) -> bool:
    """Whether views of other videos show one of these, and labels were made of such views."""
    if shard.stage == LABELS_STAGE:
        return not shard.root.exists(Shard(shard.root, EMBEDDINGS_STAGE, shard.key).index_name)
    if shard.stage not in (VIEWS_STAGE, EMBEDDINGS_STAGE) or not found.data_sha256:
        return False
    donors = shard.open_data(found).read(["donor_id"])["donor_id"]
    return not gone.isdisjoint(donors.unique().to_pylist())


def _write_data(shard: Shard, found: ShardIndex, gone: frozenset[str]) -> Any:
    """The data file without these videos; returns its writer."""
    if shard.root.sha256(shard.data_name) != found.data_sha256:
        raise DamagedError(f"storage: {shard.data_name} is not what was written")
    with shard.open_data(found) as file:
        fields, places = list(file.schema_arrow), found.places()
        rows = VideoRows(shard, [field.name for field in fields[1:]], file=file, places=places)
        group_rows, compress = GROUP_ROWS.get(shard.stage, DESCRIPTOR_ROWS), shard.stage == LABELS_STAGE
        with shard.write_data(fields, row_group_rows=group_rows, compress=compress) as writer:
            for video_id in (video_id for video_id in places if video_id not in gone):
                writer.write(rows.read(video_id).columns)
    return writer


def _restamp_whitening(root: DataRoot, keys: Collection[str]) -> None:
    """A whitening stays as it was fitted: another one would make every feature again."""
    found = whitening_provenance(root)
    if found is not None and not found.inputs.keys().isdisjoint(keys):
        frames = {key: Shard(root, FRAMES_STAGE, key) for key in found.inputs if key in keys}
        digests = {key: frames_digest(shard) for key, shard in frames.items() if root.exists(shard.index_name)}
        provenance = replace(found, inputs={**found.inputs, **digests})
        root.write_json(PROVENANCE_NAME, root.read_json(PROVENANCE_NAME) | {"provenance": provenance.to_json()})


def _indexes(root: DataRoot) -> list[str]:
    """Places of all indexes, also those that a rollback goes back to."""
    places = [model_place(digest) for digest in root.list_folders(SEARCH)]
    found = [f"{place}/{name}" for place in places for name in root.list_folders(place) if INDEX_NAME.fullmatch(name)]
    return [place for place in found if root.exists(f"{place}/{STATE_FILE}")]


def _described(root: DataRoot, place: str, keys: Collection[str]) -> dict[str, str]:
    """Digests of the descriptors of an index's network by shard, of those that are finished."""
    shards = {key: descriptor_shard(root, place.split("/")[1], key).find() for key in keys}
    return {key: found.data_sha256 for key, found in shards.items() if found is not None}


def _forget_in_tables(project: Project, asked: Forgetting, values: Collection[str]) -> None:
    """Pairs, groups, what is known of pictures, watch matches; those that were up to date stay so."""
    root = project.root
    index = current_index(root) if root.exists(CURRENT) else None
    indexed = index.shards(root) if index is not None else {}
    queries = asked_of(project, watch_queries(project))
    for stage, more in ((PAIRS_STAGE, {"pairs": PAIRS_VERSION}), (WATCH_STAGE, queries)):
        for key in root.list_folders(stage):
            fingerprint = ""
            if index is not None and key in indexed and f"{stage}/{key}" in asked.current:
                with suppress(DataError):  # a call was killed as it wrote features
                    fingerprint = search_fingerprint(stage, project, index, key, indexed[key], **more)
            _forget_in_table(root, f"{stage}/{key}/rows.parquet", values, fingerprint)
    for place in (MARKED_PLACE, PICTURES_PLACE):
        _forget_in_table(root, place, values)
    root.delete(GROUPS_PLACE)  # they are made again of the pairs


def _forget_in_table(root: DataRoot, place: str, values: Collection[str], fingerprint: str = "") -> bool:
    """Whether the table had such rows, which it has no longer; a damaged one goes. fingerprint: its new one, if any."""
    if not root.exists(place):
        return False
    try:
        with root.open(place) as file, root.corruption_errors(place, hint="it is made again"):
            table = read_table(pa.BufferReader(file.read()))
    except DamagedError:
        root.delete(place)
        return False
    kept = _without(table, values)
    if fingerprint:
        kept = kept.replace_schema_metadata({**table.schema.metadata, b"hapvr.fingerprint": fingerprint.encode()})
    if len(kept) < len(table) or fingerprint:
        with root.write(place) as stream:
            write_table(kept, stream)
    return len(kept) < len(table)


def _without(table: pa.Table, values: Collection[str]) -> pa.Table:
    """The rows in which no text is one of these values."""
    for field in table.schema:
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            named = pc.is_in(table[field.name], value_set=pa.array(sorted(values), field.type))
            table = table.filter(pc.invert(named))
    return table


def _forget_in_trainings(project: Project, values: Collection[str]) -> None:
    """Labelled pairs and scores, in the folders of trainings and among the artifacts of all runs, also deleted ones."""
    root = project.root
    if root.local is None:
        return
    for path in root.local.glob(f"{MODELS}/*/benchmarks/**/*.parquet"):
        _forget_in_table(root, path.relative_to(root.local).as_posix(), values)
    for folder in (path.parent for path in root.local.glob(f"{MODELS}/*/{LABELLED_NAME}")):
        found = read_labelled_pairs(folder)
        pairs = tuple(pair for pair in found.pairs if not {*pair.videos} & {*values})
        distractors = tuple(one for one in found.distractors if one not in values)
        write_labelled_pairs(folder, replace(found, pairs=pairs, distractors=distractors))
    if not (root.exists("mlflow/mlflow.db") or project.config.tracking.uri):
        return
    tracker = tracker_of(project)
    with tempfile.TemporaryDirectory() as temporary:
        copies = DataRoot(temporary)
        for run_id, place in tracker.tables("benchmarks"):
            path = tracker.client.download_artifacts(run_id, place, temporary)
            if _forget_in_table(copies, Path(path).relative_to(temporary).as_posix(), values):
                tracker.client.log_artifact(run_id, path, place.rpartition("/")[0])


def _contents(root: DataRoot) -> dict[str, str]:
    """Video id -> SHA-256, of all that were read."""
    found = (Shard(root, VIDEOS_STAGE, key).find() for key in shard_keys(root))
    return {
        row["video_id"]: row["sha256"] for index in found if index is not None for row in index.rows() if row["sha256"]
    }


def _mentions(root: DataRoot, name: str, values: Collection[str]) -> bool:
    """Whether a generated benchmark was made of one of these contents."""
    place = f"{CORPUS_FOLDER}/{name}/benchmark.json"
    if not root.exists(place):
        return False
    with root.open(place) as file:
        text = file.read().decode(errors="replace")
    return any(value in text for value in values)
