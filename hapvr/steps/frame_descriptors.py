"""Step 11: descriptors of all frames by the champion's network (asset `frame_descriptors`)."""

import warnings
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hapvr.data.features import (
    IMPORTED,
    MAX_NORM,
    STAGE as FEATURES_STAGE,
    FeatureFile,
    without_extras,
)
from hapvr.data.shard_build import ShardRecipe, StageResult, VideoEntry, build_shard, failed_rows
from hapvr.data.shards import STATUS_OK, frame_columns, index_row
from hapvr.errors import DataError
from hapvr.files import arrays_sha256, digest_of
from hapvr.networks.whitening import PROVENANCE_NAME
from hapvr.progress import Progress, no_progress
from hapvr.provenance import require_settings
from hapvr.scorer.blank import blank_pictures, mean_directions
from hapvr.search import blank_file, descriptors
from hapvr.search.current import model_place
from hapvr.search.descriptors import VIDEO_VECTOR, FrameDescriptors
from hapvr.steps.features import open_extractor
from hapvr.steps.project import Project
from hapvr.steps.search_model import SearchModel
from hapvr.video.frames import HASH_VERSION


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
    nothing: dict[str, Any] = {"num_kept": 0}
    if model.embeds_videos:
        nothing[VIDEO_VECTOR.name] = b""

    def make(video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        file = FeatureFile(features, extras=model.needs_extras)
        for video_id in video_ids:
            regions = file.regions(video_id)
            if IMPORTED in settings and np.linalg.norm(regions, axis=-1).max() > MAX_NORM:
                problem = "its regions are not unit vectors, which the network takes"
                warnings.warn(f"{video_id} of shard {key} is left out of the index: {problem}")
                lost = index_row(video_id, 0, reason="no_unit_vectors", message=problem, **nothing)
                yield lost, None
                continue

            embedded = model.embed(regions)
            described = descriptors.frame_descriptors(embedded, blank=blank)
            shows_something = described.kept.any()
            columns = _index_columns(model, embedded, described) if shows_something else nothing
            row = index_row(video_id, len(regions), **columns)
            yield (
                row,
                frame_columns(
                    video_id,
                    file.times(video_id),
                    described.reasons.tolist(),
                    file.hashes(video_id),
                    described.vectors,
                ),
            )

    return build_shard(
        descriptor_recipe(project, key, model, blank),
        video_ids=[row["video_id"] for row in rows if row["status"] == STATUS_OK],
        make=make,
        lost=failed_rows(rows, **nothing),
        progress=progress,
    )


def _index_columns(
    model: SearchModel, embedded: npt.NDArray[np.float32], described: FrameDescriptors
) -> dict[str, Any]:
    """The row of a video that has frames which can be found, in the index of a shard."""
    columns: dict[str, Any] = {"num_kept": int(described.kept.sum())}
    if model.embeds_videos:
        vector = descriptors.video_vector(embedded).astype(np.float16)
        columns[VIDEO_VECTOR.name] = vector.tobytes() if vector.any() else b""

    return columns


def descriptor_recipe(
    project: Project, key: str, model: SearchModel, blank: npt.NDArray[np.float32]
) -> ShardRecipe:
    """What the descriptors of a shard are made from.

    blank: [B, D] of pictures of one colour
    """
    features = project.shard(FEATURES_STAGE, key)
    settings: dict[str, Any] = {
        "model": model.digest,
        "max_frozen_similarity": descriptors.MAX_FROZEN_SIMILARITY,
        "features": dict(features.require({}).settings),
        "hash": HASH_VERSION,
        "blank": arrays_sha256({"blank": blank}) if len(blank) else "",
    }
    index_columns: tuple[pa.Field, ...] = descriptors.INDEX_COLUMNS
    if model.embeds_videos:
        settings["video_vectors"] = True
        index_columns = (*index_columns, VIDEO_VECTOR)

    return ShardRecipe(
        shard=descriptors.descriptor_shard(project.root, model.digest, key),
        settings=settings,
        inputs={"features": features.digest()},
        columns=descriptors.fields(model.embedding_dims),
        index_columns=index_columns,
    )


def _blank(
    project: Project, model: SearchModel, settings: Mapping[str, Any]
) -> npt.NDArray[np.float32]:
    """[B, D] of pictures of one colour; none where features came from elsewhere, so that their
    backbone is not at hand."""
    root = project.root
    if IMPORTED in settings or not root.exists(PROVENANCE_NAME):
        return np.zeros((0, 0), np.float32)
    made_with = digest_of(without_extras(settings))
    with root.lock(f"{model_place(model.digest)}/blank"):
        if not blank_file.known_blank(root, model.digest, made_with).size:
            extractor = open_extractor(project, extras=model.needs_extras)
            what = "search: the features were made with other settings than the configuration has"
            hint = "Run `hapvr extract`, or restore those settings"
            require_settings(without_extras(settings), extractor.settings, what=what, hint=hint)
            regions = extractor.embed(blank_pictures(project.config.backbone.crop_px))
            embedded = np.concatenate([model.embed(picture[None]) for picture in regions])
            blank_file.write_blank(root, model.digest, made_with, mean_directions(embedded))

    return blank_file.read_blank(root, model.digest)
