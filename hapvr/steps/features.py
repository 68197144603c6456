"""Step 5: whitened region features of whole videos (asset `features`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hapvr.data.features import INDEX_COLUMNS, ROW_GROUP_ROWS, STAGE, feature_columns, fields
from hapvr.data.frame_extras import extras_setting
from hapvr.data.frames import STAGE as FRAMES_STAGE
from hapvr.data.frames import frames_digest
from hapvr.data.shard_build import ShardRecipe, StageResult, VideoEntry, build_shard, failed_rows
from hapvr.data.shards import STATUS_OK, index_row
from hapvr.networks.backbone import Backbone, center_crop, decode_frames, load_backbone
from hapvr.networks.extract import choose_device, embed_in_batches, region_embedder, separate_extras
from hapvr.networks.whitening import Whitening, load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project

DECODED_FRAMES = 64
"""Frames held at their stored size at a time."""


def feature_settings(project: Project, backbone: Backbone, whitening: Whitening) -> dict[str, Any]:
    """What determines the regions of features: sampling, backbone, crop and whitening."""
    return {
        "sampling": project.config.sampling.identity_fields(),
        "backbone": backbone.settings,
        "crop_px": backbone.crop_px,
        "whitening": whitening.sha256,
    }


def pooled_dims(project: Project, whitening: Whitening) -> int:
    """C of the pooled vectors that the configuration asks for with features, 0 for none."""
    return len(whitening.mean) if project.config.features.pooled else 0


def make_features(project: Project, key: str, *, progress: Progress = no_progress) -> StageResult:
    """Extract [T, 9, D] features of every video of the shard that has frames; the others keep their failed row.

    Videos whose frames and settings are those of an earlier run are not extracted again.
    """
    frames = project.shard(FRAMES_STAGE, key)
    frames.require({"sampling": project.config.sampling.identity_fields()})
    inputs = {"frames": frames_digest(frames)}
    rows = frames.rows()
    digests = {row["video_id"]: row["frames_sha256"] for row in rows if row["status"] == STATUS_OK}
    backbone = load_backbone(project.config.backbone)
    whitening = load_whitening(project.root)
    extras_dims = pooled_dims(project, whitening)
    embed = region_embedder(backbone, whitening, choose_device(project.config.device), extras=extras_dims > 0)

    def make(video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        for video_id, values, timestamps_s in _extract(project, key, frozenset(video_ids), backbone, embed):
            row = index_row(video_id, len(values), frames_sha256=digests[video_id])
            regions, *extras = separate_extras(values, extras_dims)
            yield VideoEntry(row, feature_columns(video_id, regions, timestamps_s, *extras), len(values))

    recipe = ShardRecipe(
        shard=project.shard(STAGE, key),
        settings=feature_settings(project, backbone, whitening) | extras_setting(extras_dims),
        inputs=inputs,
        columns=fields(num_regions=project.config.backbone.num_regions, dims=whitening.dims, extras_dims=extras_dims),
        index_columns=INDEX_COLUMNS,
        row_group_rows=ROW_GROUP_ROWS,
        made_with=embed.environment,
    )
    return build_shard(
        recipe,
        video_ids=list(digests),
        make=make,
        lost=failed_rows(rows, frames_sha256=""),
        reuse=lambda row, _: digests.get(row["video_id"]) == row.get("frames_sha256"),
        progress=progress,
    )


def _extract(
    project: Project, key: str, video_ids: frozenset[str], backbone: Backbone, embed: Callable[[Tensor], Tensor]
) -> Iterator[tuple[str, Tensor, Sequence[float]]]:
    """(video id, what `embed` gives [T, ...], seconds [T]) of these videos, in the order of the shard's frames."""
    times: deque[Sequence[float]] = deque()

    def clips() -> Iterator[tuple[str, Tensor]]:
        reader = open_frames(project, key)
        for video_id in reader.video_ids:
            if video_id in video_ids:
                video = reader.read(video_id)
                times.append(video.timestamps_s)
                yield video_id, crops(video.jpegs, backbone.crop_px)

    for video_id, values in embed_in_batches(clips(), embed, batch_frames=project.config.backbone.batch_frames):
        yield video_id, values, times.popleft()


def crops(jpegs: Sequence[bytes], crop_px: int) -> Tensor:
    """[N, 3, crop_px, crop_px]; a long video is never whole in memory at its full size."""
    parts = [jpegs[start : start + DECODED_FRAMES] for start in range(0, len(jpegs), DECODED_FRAMES)]
    return torch.cat([center_crop(decode_frames(part), crop_px) for part in parts])
