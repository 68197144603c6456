"""Stage 6 and 7: augmented clips as region features, and as teacher embeddings with pseudo labels.

Both assets make the same pixels: every draw comes from (views.seed, video id, view index), so neither needs the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from hapvr.augment.view import View
from hapvr.errors import DataError
from hapvr.features.backbone import NUM_REGIONS, load_backbone
from hapvr.features.extract import choose_device, embed_in_batches, region_embedder
from hapvr.features.teacher import load_teacher
from hapvr.features.views import ViewDrawer
from hapvr.features.whitening import load_whitening
from hapvr.labels.pseudo import pseudo_labels
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, environment
from hapvr.stages.features import feature_settings
from hapvr.stages.frames import open_frames
from hapvr.stages.project import Project
from hapvr.storage.frames import STAGE as FRAMES_STAGE
from hapvr.storage.frames import FrameReader, frames_digest
from hapvr.storage.shard_build import StageResult, failed_rows
from hapvr.storage.shards import STATUS_OK, Columns, Shard, index_row
from hapvr.storage.tensors import tensor_field
from hapvr.storage.views import (
    EMBEDDINGS_STAGE,
    LABELS_STAGE,
    VIEWS_STAGE,
    LabelFile,
    ViewFile,
    ViewRow,
    view_columns,
    view_fields,
)


def make_training_views(project: Project, key: str, *, progress: Progress = no_progress) -> StageResult:
    """Region features [V, T, 9, D] of the weak and strong views of every training video of the shard."""
    backbone = load_backbone(project.config.backbone)
    whitening = load_whitening(project.root)
    settings = _view_settings(project) | {"features": feature_settings(project, backbone, whitening)}
    shard = project.shard(VIEWS_STAGE, key)
    with shard.lock():
        return _make_views(
            project,
            key,
            shard=shard,
            settings=settings,
            embed=region_embedder(backbone, whitening, choose_device(project.config.device)),
            fields=view_fields("regions", shape=(project.config.views.num_frames, NUM_REGIONS, whitening.dims)),
            batch_frames=project.config.backbone.batch_frames,
            progress=progress,
        )


def make_pseudo_labels(project: Project, key: str, *, progress: Progress = no_progress) -> StageResult:
    """Teacher embeddings [V, T, D'] of the same views, and from them the labels of all pairs of views of one video.

    Other rates make other labels from the same embeddings.
    """
    embeddings = _make_embeddings(project, key, progress)
    shard = project.shard(LABELS_STAGE, key)
    with shard.lock():
        return _make_labels(project, shard, embeddings)


def _make_labels(project: Project, shard: Shard, embeddings: Shard) -> StageResult:
    config = project.config.pseudo_labels
    settings = {"pseudo_labels": config.model_dump(mode="json")}
    provenance = Provenance(LABELS_STAGE, settings, {EMBEDDINGS_STAGE: embeddings.data_digest()}, environment())
    if shard.is_finished(provenance):
        return StageResult.from_shard(shard, done=False)
    frames = project.config.views.num_frames
    fields = (
        pa.field("video_id", pa.string(), nullable=False),
        pa.field("query_view", pa.int32(), nullable=False),
        pa.field("reference_view", pa.int32(), nullable=False),
        tensor_field("labels", shape=(frames, frames), dtype="int8"),
    )
    rows = []
    file = ViewFile(embeddings)
    with shard.write_data(fields, row_group_rows=None, compress=True) as writer:
        for video_id in file.video_ids:
            values = file.read(video_id).float()
            labels = pseudo_labels(
                values[:, None],
                values[None],
                config,
            )
            writer.write(_label_columns(video_id, labels))
            rows.append(index_row(video_id, len(values) ** 2))
    shard.write_index(rows + failed_rows(embeddings.index()), provenance=provenance)
    return StageResult.from_shard(shard, done=True)


def label_rates(shard: Shard) -> dict[str, float]:
    """Part of positive, ignored and negative entries of a shard's labels, over pairs of different views."""
    file = LabelFile(shard)
    counts = torch.zeros(3)
    for video_id in file.video_ids:
        labels = file.read(video_id)
        different = labels[~torch.eye(len(labels), dtype=torch.bool)]
        counts += torch.stack([(different == value).sum() for value in (1, 0, -1)]).float()
    rates = (counts / counts.sum().clamp_min(1)).tolist()
    return dict(zip(("positive", "ignored", "negative"), rates, strict=True))


def _make_embeddings(project: Project, key: str, progress: Progress) -> Shard:
    teacher = load_teacher(project.config.teacher, crop_px=project.config.backbone.crop_px)
    device = choose_device(project.config.device)
    teacher.network.to(device)
    settings = _view_settings(project) | {"teacher": teacher.settings, "teacher_input": teacher.input}
    shard = project.shard(EMBEDDINGS_STAGE, key)
    with shard.lock():
        _make_views(
            project,
            key,
            shard=shard,
            settings=settings,
            embed=lambda frames: teacher.embed(frames.to(device)).cpu(),
            fields=view_fields("embeddings", shape=(project.config.views.num_frames, teacher.dims)),
            batch_frames=project.config.teacher.batch_frames,
            progress=progress,
        )
    return shard


def _view_settings(project: Project) -> dict[str, Any]:
    config = project.config
    return {
        "views": config.views.model_dump(mode="json"),
        "sampling": config.sampling.content(),
        "crop_px": config.backbone.crop_px,
    }


def _make_views(
    project: Project,
    key: str,
    *,
    shard: Shard,
    settings: dict[str, Any],
    embed: Callable[[Tensor], Tensor],
    fields: tuple[pa.Field, ...],
    batch_frames: int,
    progress: Progress,
) -> StageResult:
    frames = project.shard(FRAMES_STAGE, key)
    frames.require({"sampling": project.config.sampling.content()})
    provenance = Provenance(shard.stage, settings, {FRAMES_STAGE: frames_digest(frames)}, environment())
    if shard.is_finished(provenance):
        return StageResult.from_shard(shard, done=False)
    described: dict[str, list[ViewRow]] = {}
    num_videos = int((frames.index()["status"] == STATUS_OK).sum())

    def clips() -> Iterator[tuple[str, Tensor]]:
        with open_frames(project, key) as file:
            for video_id in file.video_ids:
                views = list(draw_views(project, file, video_id))
                described[video_id] = [row for row, _ in views]
                yield video_id, torch.cat([view.frames for _, view in views])

    rows, num_frames = [], 0
    with shard.write_data(fields, row_group_rows=None, compress=False) as writer:
        for video_id, values in embed_in_batches(clips(), embed, batch_frames=batch_frames):
            views = described.pop(video_id)
            array = values.numpy().astype(np.float16)
            if not np.isfinite(array).all():
                raise DataError(
                    f"{shard.stage}: {video_id}: the network gave values that half precision does not hold; "
                    f"check its weights and input"
                )
            writer.write(view_columns(views, array.reshape(len(views), -1, *array.shape[1:])))
            rows.append(index_row(video_id, len(views)))
            num_frames += len(values)
            progress(len(rows), num_videos, num_frames)
    shard.write_index(rows + failed_rows(frames.index()), provenance=provenance)
    return StageResult.from_shard(shard, done=True)


def draw_views(project: Project, file: FrameReader, video_id: str) -> Iterator[tuple[ViewRow, View]]:
    """The views of one video, weak ones first; a strong one may carry a donor from the same shard (video-in-video)."""
    config = project.config.views
    drawer = ViewDrawer(file, config=config, size_px=project.config.backbone.crop_px)
    for index in range(config.num_weak + config.num_strong):
        yield drawer.draw(video_id, index, "weak" if index < config.num_weak else "strong")


def _label_columns(video_id: str, labels: Tensor) -> Columns:
    """labels: [V, V, T, T] int8."""
    views = len(labels)
    query, reference = np.divmod(np.arange(views * views), views)
    return [video_id] * len(query), query, reference, labels.flatten(0, 1).numpy()
