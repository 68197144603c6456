"""How shards forget videos, and with them all that names shards by their digests.

A shard is written again without the rows. What was made from it then names it by its new digest, so
it still counts as done, and nothing is decoded again.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace

from hapvr.care.forgetting import DIGESTS, Forget, Forgetting
from hapvr.data import frames, manifest
from hapvr.data.features import LABELS_STAGE, VIEWS_STAGE
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import MANIFEST_STAGE, VIDEOS_STAGE
from hapvr.data.shards import INDEX_FIELDS, Shard, ShardIndex
from hapvr.data.video_rows import VideoRows
from hapvr.errors import DamagedError
from hapvr.files import PART_SUFFIX
from hapvr.networks.whitening import PROVENANCE_NAME, whitening_provenance
from hapvr.search.current import SEARCH_FOLDER as SEARCH, model_place, serving_index
from hapvr.search.descriptors import descriptor_shard
from hapvr.search.frame_index import STATE_FILE
from hapvr.search.indexes import open_index
from hapvr.search.video_index import videos_place
from hapvr.steps.project import Project
from hapvr.steps.search_index import INDEX_NAME, remove
from hapvr.steps.videos import content_digest


def forget_in_manifest(project: Project, forgetting: Forgetting) -> None:
    """Remove their rows."""
    root = project.root
    with root.lock(MANIFEST_STAGE):
        for key in forgetting.shards:
            rows = manifest.read_manifest_shard(root, key)
            staying = [row for row in rows if row.video_id not in forgetting.video_ids]
            manifest.write_manifest_shard(root, key, staying)


def forget_in_stage(stage: str) -> Forget:
    """Forgets in the shards of a stage."""

    def forget(project: Project, forgetting: Forgetting) -> None:
        for key in forgetting.shards:
            _forget_in_shard(Shard(project.root, stage, key), forgetting)

    return forget


def forget_descriptors(project: Project, forgetting: Forgetting) -> None:
    """Forget in the descriptors of all networks, including those that a rollback would use."""
    root = project.root
    for digest in root.list_folders(SEARCH):
        for key in forgetting.shards:
            _forget_in_shard(descriptor_shard(root, digest, key), forgetting)


def rename_in_whitening(project: Project, forgetting: Forgetting) -> None:
    """Give the whitening the new digests of its shards. It stays, since another one would mean
    extracting all features again."""
    root = project.root
    provenance = whitening_provenance(root)
    if provenance is None:
        return
    provenance = replace(provenance, inputs=_renamed(provenance.inputs, forgetting.renamed))
    record = root.read_json(PROVENANCE_NAME) | {"provenance": provenance.to_json()}
    root.write_json(PROVENANCE_NAME, record)


def forget_in_indexes(project: Project, forgetting: Forgetting) -> None:
    """Forget in all indexes, including those that a rollback would use. A damaged one that answers
    no searches is removed."""
    root = project.root
    with root.lock(SEARCH):
        serving = serving_index(root)
        for place in _index_places(root):
            try:
                index = open_index(root.url_of(place), project.config.search.index)
                index.forget(sorted(forgetting.video_ids), forgetting.renamed)
            except DamagedError as error:
                answering = serving.place if serving is not None else None
                if answering is not None and place in (answering, videos_place(answering)):
                    raise
                warnings.warn(f"{error}. It is removed, as it does not answer searches")
                remove(root, place)


def _index_places(root: DataRoot) -> list[str]:
    """The places of all indexes of frames, and of the indexes of videos beside them."""
    places = []
    for above in map(model_place, root.list_folders(SEARCH)):
        names = [name for name in root.list_folders(above) if INDEX_NAME.fullmatch(name)]
        for name in names:
            place = f"{above}/{name}"
            places += [place, videos_place(place)]

    return [place for place in places if root.exists(f"{place}/{STATE_FILE}")]


def _forget_in_shard(shard: Shard, forgetting: Forgetting) -> None:
    """Write the shard without these videos. A shard that is damaged or unfinished, or shows them in
    views of others, is removed: its step rebuilds it."""
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


def _may_show(views: Shard, gone: frozenset[str]) -> bool:
    """Whether clips of these videos are part of others' views."""
    hosts = views.open_data().read(["host_id"])["host_id"]
    return not gone.isdisjoint(hosts.unique().to_pylist())


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
    inputs = index.provenance.inputs  # of `videos`, one row for each video
    staying = {name: digest for name, digest in inputs.items() if name not in gone}
    provenance = replace(index.provenance, inputs=_renamed(staying, renamed))
    new.write_index(rows, provenance=provenance, fields=own)


def _take(shard: Shard, new: Shard) -> None:
    """Replace a shard by what was written without the videos, once that is finished; continues a
    call that was killed."""
    root = shard.root
    if root.exists(new.index_name):
        if root.exists(new.data_name):
            root.delete(shard.index_name)
            root.filesystem.move(root.path(new.data_name), root.path(shard.data_name))

        root.filesystem.move(root.path(new.index_name), root.path(shard.index_name))
        root.note_made(shard.index_name)

    root.delete_folder(f"{new.stage}/{new.key}")


def _digests(shard: Shard) -> list[str]:
    """The digests by which other shards, indexes and the whitening know the shard."""
    digests = [shard.digest(), shard.read().data_sha256]
    if shard.stage == VIDEOS_STAGE:
        digests.append(content_digest(shard.rows()))
    if shard.stage == frames.STAGE:
        digests.append(frames.frames_digest(shard))
    return digests


def _renamed(inputs: Mapping[str, str], renamed: Mapping[str, str]) -> dict[str, str]:
    return {name: renamed.get(digest, digest) for name, digest in inputs.items()}
