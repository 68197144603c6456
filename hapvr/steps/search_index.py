"""Step 12: the index of the collection, kept up to date from descriptor shards (asset `search_index`)."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.features import finished_shards
from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError, DataError
from hapvr.progress import Progress, no_progress
from hapvr.search.current import BLANK_FILE, FOLDER, CurrentIndex, model_place, serving_index, write_current
from hapvr.search.index import STATE_FILE, FrameIndex, IndexStatus
from hapvr.search.shards import descriptor_shard, searchable
from hapvr.search.vectors import VECTOR
from hapvr.steps.descriptors import is_described, make_descriptors
from hapvr.steps.project import Project
from hapvr.steps.search_model import SearchModel

INDEX_NAME = re.compile(r"index-\d{4,}")


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
    recall: float
    added: tuple[str, ...]
    replaced: tuple[str, ...]
    removed: tuple[str, ...]
    awaited: tuple[str, ...]
    done: bool


def update_index(
    project: Project, model: SearchModel, *, rebuild: bool = False, progress: Progress = no_progress
) -> IndexUpdate:
    """Bring the index of this model up to date with all features, check it, and let it answer if it passes.

    Shards that the index has are left alone, so a killed update goes on where it stopped. rebuild: build another index from
    the first shard on; the present one answers until then. Raises DataError where there are no features, or features
    that do not go with the model.
    """
    root = project.root
    with root.lock(FOLDER):
        serving = serving_index(root)
        finished, awaited = finished_shards(project.root)
        if not finished:
            raise DataError("search: no shard has features; run `hapvr extract` with this configuration first")
        place = _place(root, model.digest, serving, rebuild=rebuild)
        settings = project.config.search.index
        index = None
        if root.exists(f"{place}/{STATE_FILE}"):
            index = FrameIndex.open(root.url_of(place), settings=settings)
        known, revision = ({}, None) if index is None else (index.status().shards, index.status().revision)
        added: list[str] = []
        replaced: list[str] = []
        for number, key in enumerate(finished):
            progress(number, len(finished))
            shard = make_descriptors(project, key, model).shard
            if key not in known or known[key].digest != shard.data_digest():
                try:
                    rows = searchable(shard)
                except DamagedError as error:
                    warnings.warn(f"{error}. They are made again", stacklevel=2)
                    root.delete(shard.index_name)
                    shard = make_descriptors(project, key, model).shard
                    rows = searchable(shard)
                if index is None:
                    serving = _named(root, serving, place)
                    provenance = {"model": model.uri, "digest": model.digest}
                    dims = rows.videos[VECTOR].type.list_size
                    index = FrameIndex.create(root.url_of(place), dims, provenance, settings=settings)
                index.replace_shard(key, *rows, digest=shard.data_digest())
                (replaced if key in known else added).append(key)
        assert index is not None
        removed = [key for key in known if key not in finished and key not in awaited]
        for key in removed:
            index.delete_shard(key)
        index.optimise()
        recall, least = index.recall(), settings.min_recall
        if recall < least:  # lists of vectors that have changed since may be of no use
            index.optimise(rebuild=True)
            recall = index.recall()
        passed = recall >= least
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


def _place(root: DataRoot, digest: str, serving: CurrentIndex | None, *, rebuild: bool) -> str:
    """The folder of the index to bring up to date, which may not be there yet."""
    above = model_place(digest)
    there = [name for name in root.list_folders(above) if INDEX_NAME.fullmatch(name)]
    if not rebuild:
        if serving is not None and serving.digest == digest:
            return serving.place
        usable = [name for name in there if root.exists(f"{above}/{name}/{STATE_FILE}")]
        if usable:
            return f"{above}/{usable[-1]}"
    number = max((int(name.removeprefix("index-")) for name in there), default=0) + 1
    return f"{above}/index-{number:04d}"


def _named(root: DataRoot, serving: CurrentIndex | None, place: str) -> CurrentIndex | None:
    """The record that names a new index before it is begun, so that one that is left half made can be removed."""
    if serving is None or place in serving.made:
        return serving
    serving = replace(serving, made=(*serving.made, place))
    write_current(root, serving)
    return serving


def _serve(
    project: Project, model: SearchModel, place: str, recall: float, before: CurrentIndex | None
) -> CurrentIndex:
    """Let an index answer, and remove those that nobody goes back to, of those that the record names.

    The one that it replaces stays until the next call, for searches that have it open.
    """
    root, since = project.root, datetime.now(UTC).isoformat(timespec="seconds")
    earlier: list[str] = []
    if before is not None:
        since = before.since if before.place == place else since
        earlier = [one for one in (before.place, *before.made) if _is_there(root, one)]
    made = list(dict.fromkeys([place, *earlier]))
    models = list(dict.fromkeys(map(_model_of, made)))
    kept = models[: 1 + project.config.search.keep_models]
    serving = CurrentIndex(
        place=place, model=model.uri, digest=model.digest, recall=recall, since=since, made=tuple(made)
    )
    if serving != before:
        write_current(root, serving)
    for one in made[1:]:
        replaced = _model_of(one) == model.digest and before is not None and one != before.place
        if replaced or _model_of(one) not in kept:
            _remove(root, one)
    for digest in models[len(kept) :]:
        above = model_place(digest)
        _remove(root, f"{above}/descriptors")
        root.delete(f"{above}/{BLANK_FILE}")
        if not root.list_folders(above) and not root.list_files(above):
            _remove(root, above)
    return serving


def _model_of(place: str) -> str:
    """The digest of the network that an index belongs to."""
    return place.split("/")[1]


def _is_there(root: DataRoot, place: str) -> bool:
    above, _, name = place.rpartition("/")
    return name in root.list_folders(above)


def _remove(root: DataRoot, place: str) -> None:
    """Remove a folder of ours, unless it is, or lies behind, a link to somewhere else."""
    if root.local is None or root.local_path(place).resolve() == root.local_path(place):
        root.delete_folder(place)
