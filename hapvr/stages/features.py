"""Stage 5: whitened region features of whole videos (asset `features`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
from torch import Tensor

from hapvr.features.backbone import NUM_REGIONS, Backbone, center_crop, load_backbone
from hapvr.features.extract import choose_device, embed_in_batches, region_embedder
from hapvr.features.images import decode_frames
from hapvr.features.whitening import Whitening, load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.stages.project import Project, StageResult
from hapvr.storage.features import ROW_GROUP_ROWS, STAGE, fields, write_features
from hapvr.storage.frames import STAGE as FRAMES_STAGE
from hapvr.storage.frames import FrameFile
from hapvr.storage.shards import STATUS_OK, index_row


def feature_settings(project: Project, backbone: Backbone, whitening: Whitening) -> dict[str, Any]:
    """What determines features: sampling, backbone, crop and whitening."""
    return {
        "sampling": project.config.sampling.content(),
        "backbone": backbone.identity.as_dict(),
        "crop_px": backbone.crop_px,
        "whitening": whitening.sha256,
    }


def make_features(project: Project, key: str, *, progress: Progress = no_progress) -> StageResult:
    """Extract [T, 9, D] features of every video of the shard that has frames; the others keep their failed row."""
    config = project.config
    frames = project.shard(FRAMES_STAGE, key)
    frames.require({"sampling": config.sampling.content()})
    backbone = load_backbone(config.backbone)
    whitening = load_whitening(project.root)
    settings = feature_settings(project, backbone, whitening)
    provenance = Provenance(STAGE, settings, {"frames": frames.data_digest()}, environment())
    shard = project.shard(STAGE, key)
    if shard.is_finished(provenance):
        return StageResult.of(shard, done=False)
    file = FrameFile(frames)

    def clips() -> Iterator[tuple[str, Tensor]]:
        for video_id in file.video_ids:
            yield video_id, center_crop(decode_frames(file.read(video_id).jpegs), backbone.crop_px)

    embed = region_embedder(backbone, whitening, choose_device(config.device))
    rows = []
    columns = fields(num_regions=NUM_REGIONS, dims=whitening.dims)
    with shard.write_data(columns, row_group_rows=ROW_GROUP_ROWS, compress=False) as writer:
        for video_id, regions in embed_in_batches(clips(), embed, batch_frames=config.backbone.batch_frames):
            write_features(writer, video_id, regions.numpy(), file.timestamps_s(video_id))
            rows.append(index_row(video_id, len(regions)))
            progress(len(rows), len(file.video_ids))
    shard.write_index(rows + failed_rows(frames.index()), provenance=provenance)
    return StageResult.of(shard, done=True)


def failed_rows(index: pl.DataFrame) -> list[dict[str, Any]]:
    """The failed videos of an earlier stage, as rows of this one: a loss stays visible to the end of the chain."""
    failed = index.filter(pl.col("status") != STATUS_OK)
    return [
        index_row(row["video_id"], 0, reason=row["reason"], message=row["message"])
        for row in failed.iter_rows(named=True)
    ]
