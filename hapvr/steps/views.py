"""Steps 6 and 7: augmented clips as region features, and as the teacher's embeddings, from which
pseudo labels follow.

The assets `training_views` and `pseudo_labels` are made from the same clips. One pass draws each
clip once and sends it through both networks. Each of the two can also be made alone, with the same
result, since its plan and the settings of `views` determine a clip (`hapvr.augment.views`).
"""

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hapvr.augment.policy import ViewDrawer
from hapvr.augment.views import plan_cached_views
from hapvr.data.features import (
    DRAWING_VERSION,
    LABELS_STAGE,
    VIEW_INDEX_COLUMNS,
    VIEWS_STAGE,
    view_fields,
)
from hapvr.data.frames import STAGE as FRAMES_STAGE, frames_digest
from hapvr.data.shard_build import ShardRecipe, StageResult, VideoEntry, build_shards, failed_rows
from hapvr.data.shards import STATUS_OK, Columns, index_row
from hapvr.errors import DataError
from hapvr.networks.backbone import load_teacher
from hapvr.networks.batches import Embed, Frames, embed_by_networks
from hapvr.progress import Progress, no_progress
from hapvr.steps.features import open_extractor
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project


def make_training_views(
    project: Project, key: str, *, progress: Progress = no_progress
) -> StageResult:
    """Region features [V, T, 9, D] of the weak and strong views of every training video of the
    shard."""
    results = make_views_and_labels(project, key, outputs=(VIEWS_STAGE,), progress=progress)
    return results[VIEWS_STAGE]


def make_pseudo_labels(
    project: Project, key: str, *, progress: Progress = no_progress
) -> StageResult:
    """The teacher's embeddings [V, T, D'] of the same views."""
    results = make_views_and_labels(project, key, outputs=(LABELS_STAGE,), progress=progress)
    return results[LABELS_STAGE]


def make_views_and_labels(
    project: Project,
    key: str,
    *,
    outputs: Sequence[str] = (VIEWS_STAGE, LABELS_STAGE),
    progress: Progress = no_progress,
) -> dict[str, StageResult]:
    """Make those of `outputs` that are unfinished, in one pass over the shard's clips; returns a
    result for each. Raises DataError for missing frames or whitening."""
    frames = project.shard(FRAMES_STAGE, key)
    frames.require({"sampling": project.config.sampling.identity_fields()})
    rows = frames.rows()
    inputs = {FRAMES_STAGE: frames_digest(frames)}
    wanted = [_output(project, key, stage, inputs) for stage in outputs]
    num_frames = {row["video_id"]: row["num_rows"] for row in rows if row["status"] == STATUS_OK}

    def make(unfinished: Sequence[ShardRecipe]) -> Generator[Sequence[VideoEntry], None, None]:
        file = open_frames(project, key)
        config = project.config.views
        plans = plan_cached_views(file.video_ids, config)

        def clips() -> Iterator[tuple[str, Frames]]:
            size_px = project.config.backbone.crop_px
            drawer = ViewDrawer(
                lambda video_id: file.read(video_id).jpegs, config=config, size_px=size_px
            )
            for video_id, of_video in plans.items():
                yield video_id, torch.cat([drawer.draw(plan) for plan in of_video]).numpy()

        embeds = [embed for recipe, embed in wanted if recipe in unfinished]
        for video_id, results in embed_by_networks(clips(), embeds):
            hosts = [plan.host_id for plan in plans[video_id]]
            row = index_row(video_id, len(hosts), num_frames=num_frames[video_id])
            yield [(row, _columns(video_id, hosts, values)) for values in results]

    built = build_shards(
        [recipe for recipe, _ in wanted],
        num_videos=len(num_frames),
        make=make,
        lost=failed_rows(rows, num_frames=0),
        progress=progress,
    )
    return dict(zip(outputs, built, strict=True))


def _columns(video_id: str, hosts: Sequence[str], values: NDArray[Any]) -> Columns:
    """The data of a video's views. values: [V x T, ...], a network's outputs for their frames.

    Raises: DataError for values that cannot be stored.
    """
    if not np.isfinite(values.astype(np.float16)).all():
        raise DataError(
            f"training_views: {video_id}: a network gave values that half precision does not "
            "hold; check its weights and input"
        )

    num_views = len(hosts)
    return [video_id] * num_views, hosts, values.reshape(num_views, -1, *values.shape[1:])


def _output(
    project: Project, key: str, stage: str, inputs: dict[str, str]
) -> tuple[ShardRecipe, Embed]:
    """A shard, and the network that makes its tensors from the drawn clips."""
    config = project.config
    shape: tuple[int, ...]
    settings: dict[str, Any] = {
        "drawing": DRAWING_VERSION,
        "views": config.views.model_dump(mode="json"),
        "sampling": config.sampling.identity_fields(),
        "crop_px": config.backbone.crop_px,
    }
    if stage == VIEWS_STAGE:
        name = "regions"
        extractor = open_extractor(project, extras=config.features.pooled)
        embed = extractor.embed
        shape = (extractor.num_vectors, extractor.dims)
        settings |= {"features": extractor.settings} | extractor.extras
    else:
        name = "embeddings"
        teacher = load_teacher(config.teacher, crop_px=config.backbone.crop_px)
        embed = teacher.embedder(config.device)
        shape = (teacher.dims,)
        settings |= {"teacher": teacher.settings}

    recipe = ShardRecipe(
        shard=project.shard(stage, key),
        settings=settings,
        inputs=inputs,
        columns=view_fields(name, shape=(config.views.num_frames, *shape)),
        index_columns=VIEW_INDEX_COLUMNS,
    )
    return recipe, embed
