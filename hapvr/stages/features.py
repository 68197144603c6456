"""Stage 5: whitened region features of whole videos (asset `features`)."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import polars as pl
import torch
from torch import Tensor

from hapvr.features.backbone import NUM_REGIONS, Backbone, center_crop, load_backbone
from hapvr.features.extract import choose_device, embed_in_batches, region_embedder
from hapvr.features.images import decode_frames
from hapvr.features.whitening import Whitening, load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.stages.frames import open_frames
from hapvr.stages.project import Project, StageResult
from hapvr.storage.features import (
    INDEX_COLUMNS,
    ROW_GROUP_ROWS,
    STAGE,
    FeatureFile,
    VideoFeatures,
    fields,
    write_features,
)
from hapvr.storage.frames import STAGE as FRAMES_STAGE
from hapvr.storage.frames import frames_digest
from hapvr.storage.shards import STATUS_OK, Shard, index_row

DECODED_FRAMES = 64
"""Frames held at their stored size at a time."""


def feature_settings(project: Project, backbone: Backbone, whitening: Whitening) -> dict[str, Any]:
    """What determines features: sampling, backbone, crop and whitening."""
    return {
        "sampling": project.config.sampling.content(),
        "backbone": backbone.settings,
        "crop_px": backbone.crop_px,
        "whitening": whitening.sha256,
    }


def make_features(project: Project, key: str, *, progress: Progress = no_progress) -> StageResult:
    """Extract [T, 9, D] features of every video of the shard that has frames; the others keep their failed row."""
    config = project.config
    shard = project.shard(STAGE, key)
    with shard.lock():
        frames = project.shard(FRAMES_STAGE, key)
        frames.require({"sampling": config.sampling.content()})
        backbone = load_backbone(config.backbone)
        whitening = load_whitening(project.root)
        settings = feature_settings(project, backbone, whitening)
        provenance = Provenance(STAGE, settings, {"frames": frames_digest(frames)}, environment())
        if shard.is_finished(provenance):
            return StageResult.of(shard, done=False)
        index = frames.index().filter(pl.col("status") == STATUS_OK)
        digests = dict(index.select("video_id", "frames_sha256").iter_rows())
        kept = _kept(shard, settings, digests)
        rows, num_frames = [], 0
        columns = fields(num_regions=NUM_REGIONS, dims=whitening.dims)
        with shard.write_data(columns, row_group_rows=ROW_GROUP_ROWS, compress=False) as writer:
            embed = region_embedder(backbone, whitening, choose_device(config.device))
            extracted = _extract(project, key, frozenset(digests) - kept.keys(), backbone, embed)
            for video_id, frames_sha256 in digests.items():
                regions, timestamps_s = kept[video_id]() if video_id in kept else next(extracted)
                write_features(writer, video_id, regions, timestamps_s)
                rows.append(index_row(video_id, len(regions), frames_sha256=frames_sha256))
                num_frames += len(regions)
                progress(len(rows), len(digests), num_frames)
        lost = [row | {"frames_sha256": ""} for row in failed_rows(frames.index())]
        shard.write_index(rows + lost, provenance=provenance, fields=INDEX_COLUMNS)
        return StageResult.of(shard, done=True)


def _extract(
    project: Project, key: str, video_ids: frozenset[str], backbone: Backbone, embed: Callable[[Tensor], Tensor]
) -> Iterator[VideoFeatures]:
    """Features of these videos of a shard's frames, in their order; `video_ids` may be empty."""
    times: deque[Sequence[float]] = deque()

    def clips() -> Iterator[tuple[str, Tensor]]:
        with open_frames(project, key) as reader:
            for video_id in reader.video_ids:
                if video_id in video_ids:
                    video = reader.read(video_id)
                    times.append(video.timestamps_s)
                    yield video_id, crops(video.jpegs, backbone.crop_px)

    for _, regions in embed_in_batches(clips(), embed, batch_frames=project.config.backbone.batch_frames):
        yield regions.numpy(), times.popleft()


def crops(jpegs: Sequence[bytes], crop_px: int) -> Tensor:
    """[N, 3, crop_px, crop_px]; a long video is never whole in memory at its full size."""
    parts = [jpegs[start : start + DECODED_FRAMES] for start in range(0, len(jpegs), DECODED_FRAMES)]
    return torch.cat([center_crop(decode_frames(part), crop_px) for part in parts])


def _kept(shard: Shard, settings: dict[str, Any], digests: dict[str, str]) -> dict[str, Callable[[], VideoFeatures]]:
    """What reads the features that an earlier run made of the same frames with the same settings."""
    found = shard.provenance()
    if found is None or found.differences(Provenance(STAGE, settings, found.inputs)):
        return {}
    index = shard.index()
    if "frames_sha256" not in index.columns:
        return {}
    rows = index.filter(pl.col("status") == STATUS_OK).select("video_id", "frames_sha256").iter_rows()
    same = [video_id for video_id, frames_sha256 in rows if digests.get(video_id) == frames_sha256]
    file = FeatureFile(shard)
    return {video_id: functools.partial(file.read, video_id) for video_id in same}


def failed_rows(index: pl.DataFrame) -> list[dict[str, Any]]:
    """The failed videos of an earlier stage, as rows of this one: a loss stays visible to the end of the chain."""
    failed = index.filter(pl.col("status") != STATUS_OK)
    return [
        index_row(row["video_id"], 0, status=row["status"], reason=row["reason"], message=row["message"])
        for row in failed.iter_rows(named=True)
    ]
