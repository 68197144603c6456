"""Steps 11 and 12: descriptors of all frames by the champion's network (asset `frame_descriptors`),
and the index that is kept up to date from them (asset `search_index`)."""

import re
import warnings
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hapvr.data.features import (
    IMPORTED,
    MAX_NORM,
    STAGE as FEATURES_STAGE,
    FeatureFile,
    collection_shards,
    without_extras,
)
from hapvr.data.filesystem import DataRoot
from hapvr.data.shard_build import ShardRecipe, StageResult, VideoEntry, build_shard, failed_rows
from hapvr.data.shards import STATUS_OK, frame_columns, index_row
from hapvr.errors import DataError
from hapvr.files import arrays_sha256, digest_of
from hapvr.networks.whitening import PROVENANCE_NAME
from hapvr.progress import Progress, no_progress
from hapvr.provenance import require_settings
from hapvr.scorer.blank import blank_pictures, mean_directions
from hapvr.search import blank_file, collection, descriptors
from hapvr.search.collection import CurrentIndex, model_place, serving_index
from hapvr.search.frame_index import MIN_RECALL, STATE_FILE, IndexStatus
from hapvr.search.indexes import create_index, open_index
from hapvr.steps.features import open_extractor
from hapvr.steps.project import Project
from hapvr.steps.search_model import SearchModel
from hapvr.video.frames import HASH_VERSION

INDEX_NAME = re.compile(r"index-\d{4,}")
KEPT_MODELS = 1
"""Models before the current one whose indexes are kept for a rollback."""


def make_descriptors(
    project: Project, key: str, model: SearchModel, *, progress: Progress = no_progress
) -> StageResult:
    """Describe every frame of the shard's videos that has features; the others keep their failed
    row. Raises DataError where the features are missing or do not go with the model."""
    features = project.shard(FEATURES_STAGE, key)
    settings = features.require({}).settings
    if model.description is not None:
        model.description.require_features(Path(model.uri), settings)
    if (dims := FeatureFile(features).dims) != model.dims:
        raise DataError(
            f"search: features of shard {key} have {dims} dimensions, and {model.uri} takes "
            f"{model.dims}; "
            "extract features with the model's settings, or take the model that was trained "
            "on these"
        )
    blank = _blank(project, model, settings)
    rows = features.rows()

    def make(video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        file = FeatureFile(features, extras=model.needs_extras)
        for video_id in video_ids:
            regions, timestamps_s = file.regions(video_id), file.times(video_id)
            if IMPORTED in settings and np.linalg.norm(regions, axis=-1).max() > MAX_NORM:
                said = "its regions are no unit vectors, which the network takes"
                warnings.warn(f"{video_id} of shard {key} is left out of the index: {said}")
                yield (
                    index_row(video_id, 0, reason="no_unit_vectors", message=said, num_kept=0),
                    None,
                )
                continue
            found = descriptors.frame_descriptors(model.embed(regions), blank=blank)
            row = index_row(video_id, len(regions), num_kept=int(found.kept.sum()))
            columns = found.reasons.tolist(), file.hashes(video_id), found.vectors
            yield row, frame_columns(video_id, timestamps_s, *columns)

    return build_shard(
        _recipe(project, key, model, blank),
        video_ids=[row["video_id"] for row in rows if row["status"] == STATUS_OK],
        make=make,
        lost=failed_rows(rows, num_kept=0),
        progress=progress,
    )


def _recipe(
    project: Project, key: str, model: SearchModel, blank: npt.NDArray[np.float32]
) -> ShardRecipe:
    features = project.shard(FEATURES_STAGE, key)
    settings = {
        "model": model.digest,
        "max_frozen_similarity": descriptors.MAX_FROZEN_SIMILARITY,
        "features": dict(features.require({}).settings),
        "hash": HASH_VERSION,
        "blank": arrays_sha256({"blank": blank}) if len(blank) else "",
    }
    return ShardRecipe(
        shard=descriptors.descriptor_shard(project.root, model.digest, key),
        settings=settings,
        inputs={"features": features.digest()},
        columns=descriptors.fields(model.embedding_dims),
        index_columns=descriptors.INDEX_COLUMNS,
    )


def _blank(
    project: Project, model: SearchModel, settings: Mapping[str, Any]
) -> npt.NDArray[np.float32]:
    """[B, D] of pictures of one colour; none where features came from elsewhere, so that their
    backbone is not at hand."""
    root = project.root
    if IMPORTED in settings or not root.exists(PROVENANCE_NAME):
        return np.zeros((0, 0), np.float32)
    with root.lock(f"{model_place(model.digest)}/blank"):
        if not blank_file.known_blank(root, model.digest, digest_of(without_extras(settings))).size:
            extractor = open_extractor(project, extras=model.needs_extras)
            what = "search: the features were made with other settings than the configuration has"
            hint = "Run `hapvr extract`, or restore those settings"
            require_settings(without_extras(settings), extractor.settings, what=what, hint=hint)
            regions = extractor.embed(blank_pictures(project.config.backbone.crop_px))
            embedded = np.concatenate([model.embed(one[None]) for one in regions])
            blank_file.write_blank(
                root,
                model.digest,
                digest_of(without_extras(settings)),
                mean_directions(embedded),
            )
    return blank_file.read_blank(root, model.digest)


@dataclass(frozen=True, kw_only=True)
class IndexUpdate:
    """What an update did. serving: the index that answers searches now. passed: whether the index
    that was brought up to date is that one; if not, its recall was too low. shards: `added`,
    `replaced`, `removed` and, as their features are unfinished, `awaited`. done: whether anything
    changed.
    """

    serving: CurrentIndex | None
    passed: bool
    status: IndexStatus
    recall: float
    shards: dict[str, list[str]]
    done: bool


def update_index(
    project: Project, model: SearchModel, *, rebuild: bool = False, progress: Progress = no_progress
) -> IndexUpdate:
    """Bring the index of this model up to date with all features, check it, and let it answer if it
    passes. Shards that the index has are left alone, so a killed update goes on where it stopped.
    rebuild: build another index from the first shard on; the present one answers until then. Raises
    DataError where there are no features, or features that do not go with the model.
    """
    root, settings = project.root, project.config.search.index
    with root.lock(collection.FOLDER):
        serving = serving_index(root)
        finished, awaited = collection_shards(root)
        if not finished:
            raise DataError(
                "search: no shard has features; run `hapvr extract` with this configuration first"
            )
        holder = dict[str, str]()
        for key in finished:
            for video_id in (
                project.shard(FEATURES_STAGE, key).read().table.column("video_id").to_pylist()
            ):
                if (other := holder.setdefault(video_id, key)) != key:
                    hint = "move those that were imported to another data root"
                    raise DataError(
                        f"search: {video_id} has features in the shards {other} and {key}; {hint}"
                    )
        place = _place(root, model.digest, serving, rebuild=rebuild)
        index, known, revision = None, {}, -1
        if root.exists(f"{place}/{STATE_FILE}"):
            index = open_index(root.url_of(place), settings)
            known, revision = index.shard_digests(), index.status().revision
        shards: dict[str, list[str]] = {
            "added": [],
            "replaced": [],
            "removed": [],
            "awaited": list(awaited),
        }
        for number, key in enumerate(finished):
            progress(number, len(finished))
            shard = make_descriptors(project, key, model).shard
            if known.get(key) == shard.read().data_sha256:
                continue
            if index is None:
                if serving is not None and place not in serving.made:
                    # named before it is begun, so that one that is left half made can be removed
                    serving = replace(serving, made=(*serving.made, place))
                    collection.write_current(root, serving)
                made_with = {"model": model.uri, "digest": model.digest}
                index = create_index(root.url_of(place), model.embedding_dims, made_with, settings)
            index.replace_shard(key, descriptors.searchable(shard), digest=shard.read().data_sha256)
            shards["replaced" if key in known else "added"].append(key)
        assert index is not None
        for key in (key for key in known if key not in finished and key not in awaited):
            index.delete_shard(key)
            shards["removed"].append(key)
        index.optimise()
        recall = index.recall()
        if recall < MIN_RECALL:  # lists of vectors that have changed since may be of no use
            index.optimise(rebuild=True)
            recall = index.recall()
        progress(len(finished), len(finished))
        passed, before, status = recall >= MIN_RECALL, serving, index.status()
        if passed:
            serving = _serve(root, model, place, recall, before)
        done = status.revision != revision or serving != before
        return IndexUpdate(
            serving=serving, passed=passed, status=status, recall=recall, shards=shards, done=done
        )


def outdated_index(project: Project, model: SearchModel) -> tuple[dict[str, str], str]:
    """Compare the features there are with the index that answers.

    Returns shards with features whose descriptors are not theirs, each with a digest of model,
    features and day; and a digest of what the index lacks, "" where it is this model's and lacks
    nothing. Raises DataError for features of another model."""
    root, undescribed, described = project.root, dict[str, str](), dict[str, str]()
    for key in collection_shards(root)[0]:
        made_with = digest_of(
            without_extras(project.shard(FEATURES_STAGE, key).require({}).settings)
        )
        recipe = _recipe(project, key, model, blank_file.known_blank(root, model.digest, made_with))
        if recipe.shard.is_finished(recipe.provenance):
            described[key] = recipe.shard.read().data_sha256
        else:
            asked = [
                model.digest,
                project.shard(FEATURES_STAGE, key).digest(),
                str(datetime.now(UTC).date()),
            ]
            undescribed[key] = digest_of(asked)  # a day later what failed is tried again
    serving = serving_index(root)
    held = serving.shards(root) if serving is not None and serving.digest == model.digest else {}
    # `since`: a champion that comes back twice is another state the second time.
    state = [model.digest, serving and [serving.place, serving.since], held, described, undescribed]
    return undescribed, digest_of(state) if undescribed or held != described else ""


def _place(root: DataRoot, digest: str, serving: CurrentIndex | None, *, rebuild: bool) -> str:
    """The folder of the index to bring up to date, which may not be there yet."""
    above = model_place(digest)
    there = [name for name in root.list_folders(above) if INDEX_NAME.fullmatch(name)]
    if not rebuild and serving is not None and serving.digest == digest:
        return serving.place
    if not rebuild and (
        usable := [name for name in there if root.exists(f"{above}/{name}/{STATE_FILE}")]
    ):
        return f"{above}/{usable[-1]}"
    number = max((int(name.removeprefix("index-")) for name in there), default=0) + 1
    return f"{above}/index-{number:04d}"


def _serve(
    root: DataRoot, model: SearchModel, place: str, recall: float, before: CurrentIndex | None
) -> CurrentIndex:
    """Let an index answer, and remove those that nobody goes back to, of those that the record
    names. The one that it replaces stays until the next call, for searches that have it open."""
    in_use = [place] if before is None else [place, before.place]
    # the digest of its network by the place of each index, newest first
    made = {
        one: one.split("/")[1] for one in (*in_use, *(before.made if before is not None else ()))
    }
    forgotten = list(dict.fromkeys(made.values()))[1 + KEPT_MODELS :]
    gone = [
        one
        for one, digest in made.items()
        if one not in in_use and digest in (model.digest, *forgotten)
    ]
    for one in gone:
        remove(root, one)
    for digest in forgotten:
        above = model_place(digest)
        remove(root, f"{above}/descriptors")
        root.delete(f"{above}/{blank_file.BLANK_FILE}")
        if not root.list_folders(above) and not root.list_files(above):
            remove(root, above)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    serving = CurrentIndex(
        place=place,
        model=model.uri,
        digest=model.digest,
        recall=recall,
        since=before.since if before is not None and before.place == place else now,
        made=tuple(one for one in made if one not in gone),
    )
    if serving != before:
        collection.write_current(root, serving)
    return serving


def remove(root: DataRoot, place: str) -> None:
    """Remove a folder of ours, unless it is, or lies behind, a link to somewhere else."""
    if root.local is None or root.local_path(place).resolve() == root.local_path(place):
        root.delete_folder(place)
