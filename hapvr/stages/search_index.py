"""Stage 12: the index of the collection, kept up to date from descriptor shards (asset `search_index`)."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime

from hapvr.errors import DamagedError, DataError
from hapvr.progress import Progress, no_progress
from hapvr.search.current import FOLDER, CurrentIndex, model_place, serving_index, write_current
from hapvr.search.index import FrameIndex, IndexStatus, Recall, ShardRows
from hapvr.search.index_state import STATE_FILE
from hapvr.search.shards import descriptor_shard, searchable
from hapvr.search.vectors import VECTOR
from hapvr.stages.descriptors import is_described, make_descriptors
from hapvr.stages.project import Project
from hapvr.stages.search_model import SearchModel
from hapvr.storage.features import STAGE as FEATURES_STAGE
from hapvr.storage.features import finished_shards
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.shards import Shard

PREFIX = "index-"


@dataclass(frozen=True, kw_only=True)
class IndexUpdate:
    """What an update did.

    serving: the index that answers searches now. passed: whether the index that was brought up to date is that one; if not,
    its recall was too low. added, replaced, removed: shards. awaited: shards whose features are unfinished. done: whether
    anything changed.
    """

    serving: CurrentIndex | None
    passed: bool
    status: IndexStatus
    recall: Recall
    added: tuple[str, ...]
    replaced: tuple[str, ...]
    removed: tuple[str, ...]
    awaited: tuple[str, ...]
    done: bool


def update_index(
    project: Project, model: SearchModel, *, anew: bool = False, progress: Progress = no_progress
) -> IndexUpdate:
    """Bring the index of this model up to date with all features, check it, and let it answer if it passes.

    Shards that the index has are left alone, so a killed update goes on where it stopped. anew: build another index from
    the first shard on; the present one answers until then. Raises DataError where there are no features, or features
    that do not go with the model.
    """
    root = project.root
    with root.lock(FOLDER):
        serving = serving_index(root)
        finished, awaited = finished_shards(project.root)
        if not finished:
            raise DataError("search: no shard has features; run `hapvr extract` with this configuration first")
        place = _place(root, model.digest, serving, anew=anew)
        index = _open(project, place)
        known = {} if index is None else index.status().shards
        revision = None if index is None else index.status().revision
        added: list[str] = []
        replaced: list[str] = []
        for number, key in enumerate(finished):
            progress(number, len(finished))
            shard = make_descriptors(project, key, model).shard
            if key not in known or known[key].digest != shard.data_digest():
                rows = _rows(project, model, shard)
                if index is None:
                    index = _create(project, model, place, dims=rows.videos[VECTOR].type.list_size)
                index.replace_shard(key, *rows, digest=shard.data_digest())
                (replaced if key in known else added).append(key)
        assert index is not None
        removed = [key for key in known if key not in finished and key not in awaited]
        for key in removed:
            index.delete_shard(key)
        index.optimise()
        recall = index.verify(probes=project.config.search.index.probes)
        passed = recall.recall >= project.config.search.index.min_recall
        if not passed:  # lists of vectors that have changed since may be of no use
            index.optimise(anew=True)
            recall = index.verify(probes=project.config.search.index.probes)
            passed = recall.recall >= project.config.search.index.min_recall
        progress(len(finished), len(finished))
        before = serving
        if passed:
            serving = _serve(project, model, place, recall, before)
        return IndexUpdate(
            serving=serving,
            passed=passed,
            status=index.status(),
            recall=recall,
            added=tuple(added),
            replaced=tuple(replaced),
            removed=tuple(removed),
            awaited=awaited,
            done=index.status().revision != revision or serving != before,
        )


@dataclass(frozen=True)
class OutdatedIndex:
    """What the index of a model lacks.

    undescribed: shards with features whose descriptors are not theirs, each with a digest of model and features. outdated:
    whether the index that answers is another model's, or lacks descriptors. digest: changes when any of this does.
    """

    undescribed: dict[str, str]
    outdated: bool
    digest: str


def outdated_index(project: Project, model: SearchModel) -> OutdatedIndex:
    """Compare the features there are with the index that answers. Raises DataError for features of another model."""
    root = project.root
    finished, _ = finished_shards(project.root)
    undescribed = {
        key: _digest([model.digest, project.shard(FEATURES_STAGE, key).digest()])
        for key in finished
        if not is_described(project, key, model)
    }
    described = {
        key: descriptor_shard(root, model.digest, key).data_digest() for key in finished if key not in undescribed
    }
    serving = serving_index(root)
    held = {}
    if serving is not None and serving.digest == model.digest:
        held = {key: entry.digest for key, entry in serving.open(root, project.config.search).status().shards.items()}
    # `since`: a champion that comes back twice is another state the second time.
    state = [model.digest, serving and [serving.place, serving.since], held, described, undescribed]
    return OutdatedIndex(undescribed, bool(undescribed) or held != described, _digest(state))


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _place(root: DataRoot, digest: str, serving: CurrentIndex | None, *, anew: bool) -> str:
    """The folder of the index to bring up to date, which may not be there yet."""
    above = model_place(digest)
    there = [name for name in root.list_folders(above) if name.startswith(PREFIX)]
    if not anew:
        if serving is not None and serving.digest == digest:
            return serving.place
        usable = [name for name in there if root.exists(f"{above}/{name}/{STATE_FILE}")]
        if usable:
            return f"{above}/{usable[-1]}"
    number = int(there[-1].removeprefix(PREFIX)) + 1 if there else 1
    return f"{above}/{PREFIX}{number:04d}"


def _open(project: Project, place: str) -> FrameIndex | None:
    if not project.root.exists(f"{place}/{STATE_FILE}"):
        return None
    return FrameIndex.open(project.root.url_of(place), settings=project.config.search.index)


def _create(project: Project, model: SearchModel, place: str, *, dims: int) -> FrameIndex:
    provenance = {"model": model.uri, "digest": model.digest}
    return FrameIndex.create(project.root.url_of(place), dims, provenance, settings=project.config.search.index)


def _rows(project: Project, model: SearchModel, shard: Shard) -> ShardRows:
    """What the index takes of a shard; descriptors that are damaged are made again."""
    try:
        return searchable(shard)
    except DamagedError as error:
        warnings.warn(f"{error}. They are made again", stacklevel=2)
        project.root.delete(shard.index_name)
        return searchable(make_descriptors(project, shard.key, model).shard)


def _serve(
    project: Project, model: SearchModel, place: str, recall: Recall, before: CurrentIndex | None
) -> CurrentIndex:
    """Let an index answer, and remove those that nobody goes back to.

    The one that it replaces stays until the next call, for searches that have it open.
    """
    root, since = project.root, datetime.now(UTC).isoformat(timespec="seconds")
    earlier: tuple[str, ...] = ()
    if before is not None:
        since = before.since if before.place == place else since
        models = dict.fromkeys((before.digest, *before.earlier))
        earlier = tuple(digest for digest in models if digest != model.digest)[: project.config.search.keep_models]
    serving = CurrentIndex(
        place=place, model=model.uri, digest=model.digest, recall=recall.recall, since=since, earlier=earlier
    )
    if serving != before:
        write_current(root, serving)
    for name in root.list_folders(model_place(model.digest)):
        folder = f"{model_place(model.digest)}/{name}"
        if name.startswith(PREFIX) and folder != place and (before is None or folder != before.place):
            root.delete_folder(folder)
    if before is not None:
        for digest in {before.digest, *before.earlier} - {model.digest, *earlier}:
            root.delete_folder(model_place(digest))
    return serving
