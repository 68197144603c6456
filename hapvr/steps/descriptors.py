"""Step 11: descriptors of the frames of all videos, by the champion's network (asset `frame_descriptors`)."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.features import FeatureFile, without_extras
from hapvr.data.shard_build import ShardRecipe, StageResult, VideoEntry, build_shard, failed_rows
from hapvr.data.shards import STATUS_OK, Shard, index_row
from hapvr.data.tensors import tensor_shape
from hapvr.errors import DataError
from hapvr.networks.backbone import load_backbone
from hapvr.networks.extract import choose_device, region_embedder
from hapvr.networks.weights import state_sha256
from hapvr.networks.whitening import PROVENANCE_NAME, load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance
from hapvr.search.current import known_blank, model_place, read_blank, write_blank
from hapvr.search.descriptors import blank_pictures, frame_descriptors, mean_directions
from hapvr.search.shards import INDEX_COLUMNS, ROW_GROUP_ROWS, descriptor_columns, descriptor_shard, fields
from hapvr.steps.features import feature_settings
from hapvr.steps.project import Project
from hapvr.steps.search_model import SearchModel


def make_descriptors(
    project: Project, key: str, model: SearchModel, *, progress: Progress = no_progress
) -> StageResult:
    """Describe every frame of the shard's videos that has features; the others keep their failed row.

    Raises DataError where the features are missing or do not go with the model.
    """
    features = project.shard(FEATURES_STAGE, key)
    settings = features.require({}).settings
    model.model.require_features(settings)
    _require_dims(features, model)
    device = choose_device(project.config.device)
    model.network.to(device)
    blank = _blank(project, model, settings, device)
    rows = features.rows()

    def make(video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        file = FeatureFile(features, extras=model.network.needs_extras)
        for video_id in video_ids:
            regions, timestamps_s = file.read(video_id)
            with torch.inference_mode():
                embedded = model.network.embed(torch.from_numpy(regions).to(device))
            vectors, still = embedded.float().cpu().numpy(), project.config.search.max_frozen_similarity
            found = frame_descriptors(vectors, blank=blank, max_frozen_similarity=still)
            row = index_row(video_id, len(regions), num_kept=int(found.kept.sum()))
            yield VideoEntry(row, descriptor_columns(video_id, found, timestamps_s), len(regions))

    return build_shard(
        _recipe(project, key, model, blank),
        video_ids=[row["video_id"] for row in rows if row["status"] == STATUS_OK],
        make=make,
        lost=failed_rows(rows, num_kept=0),
        progress=progress,
    )


def is_described(project: Project, key: str, model: SearchModel) -> bool:
    """Whether the shard's descriptors are those of its features by this model. Raises DataError as `make_descriptors` does."""
    recipe = _recipe(project, key, model, known_blank(project.root, model.digest))
    return recipe.shard.is_finished(recipe.provenance)


def _recipe(project: Project, key: str, model: SearchModel, blank: npt.NDArray[np.float32]) -> ShardRecipe:
    features = project.shard(FEATURES_STAGE, key)
    settings = {
        "model": model.digest,
        "max_frozen_similarity": project.config.search.max_frozen_similarity,
        "features": dict(features.require({}).settings),
        "blank": state_sha256({"blank": torch.from_numpy(blank)}) if len(blank) else "",
    }
    return ShardRecipe(
        shard=descriptor_shard(project.root, model.digest, key),
        settings=settings,
        inputs={"features": features.digest()},
        columns=fields(model.network.embedding_dims),
        index_columns=INDEX_COLUMNS,
        row_group_rows=ROW_GROUP_ROWS,
    )


def _require_dims(features: Shard, model: SearchModel) -> None:
    with features.open_data() as file:
        (_, dims), _ = tensor_shape(file.schema_arrow.field("regions"))
    if dims != model.network.dims:
        raise DataError(
            f"search: features of shard {features.key} have {dims} dimensions, and {model.uri} takes {model.network.dims}; "
            "extract features with the model's settings, or take the model that was trained on these"
        )


def _blank(
    project: Project, model: SearchModel, settings: Mapping[str, Any], device: torch.device
) -> npt.NDArray[np.float32]:
    """[B, D] of pictures of one colour; none where features came from elsewhere, so that their backbone is not at hand."""
    root = project.root
    if "imported" in settings or not root.exists(PROVENANCE_NAME):
        return np.zeros((0, 0), np.float32)
    with root.lock(f"{model_place(model.digest)}/blank"):
        if not known_blank(root, model.digest).size:
            backbone, whitening = load_backbone(project.config.backbone), load_whitening(root)
            now = Provenance(FEATURES_STAGE, feature_settings(project, backbone, whitening))
            if differences := now.differences(Provenance(FEATURES_STAGE, without_extras(settings))):
                raise DataError(
                    f"search: the features were made with other settings than the configuration has: "
                    f"{'; '.join(differences)}. Run `hapvr extract`, or restore those settings"
                )
            with torch.inference_mode():
                embed = region_embedder(backbone, whitening, device, extras=model.network.needs_extras)
                regions = embed(torch.from_numpy(blank_pictures(backbone.crop_px))).to(device)
                embedded = model.network.embed(regions[:, None])[:, 0]
            write_blank(root, model.digest, mean_directions(embedded.float().cpu().numpy()))
    return read_blank(root, model.digest)
