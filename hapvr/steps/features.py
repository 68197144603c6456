"""Step 5: whitened region features of whole videos (asset `features`), and published ones, without their videos."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from hapvr.data.features import EXTRAS_SETTING, HASH_SETTING, INDEX_COLUMNS, STAGE, feature_columns, fields
from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import STAGE as FRAMES_STAGE
from hapvr.data.frames import frames_digest
from hapvr.data.shard_build import ShardRecipe, StageResult, VideoEntry, build_shard, failed_rows
from hapvr.data.shards import STATUS_OK, Shard, index_row
from hapvr.errors import ArgumentError
from hapvr.files import file_sha256
from hapvr.networks.extract import Embed, Frames, embed_by_networks, open_backbone, region_embedder
from hapvr.networks.whitening import load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.settings import explain
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project
from hapvr.video.frames import HASH_VERSION, Hashes, center_crop, decode_jpegs, frame_hashes
from hapvr.video.settings import SourceName

DECODED_FRAMES = 64
"""Frames held at their stored size at a time."""
IMPORT_VIDEOS = 512
"""Videos per shard of imported features."""


class Extractor(NamedTuple):
    """What makes the features of frames.

    embed: the network; settings: what determines the regions that it makes; extras: what frame extras add to the shard's; shape:
    [R, D] of a frame, the rows of its extras included.
    """

    embed: Embed
    settings: dict[str, Any]
    extras: dict[str, int]
    shape: tuple[int, int]


def open_extractor(project: Project, *, extras: bool) -> Extractor:
    """The backbone and whitening of the project. extras: with the pooled vectors that `features.pooled` asks for."""
    config, whitening = project.config, load_whitening(project.root)
    backbone = open_backbone(config.backbone, config.device, extras=extras)
    settings = {
        "sampling": config.sampling.identity_fields(),
        "backbone": backbone.settings,
        "crop_px": backbone.crop_px,
        "whitening": whitening.sha256,
    }
    pooled, num_rows = len(whitening.mean) if extras else 0, config.backbone.num_regions
    if extras:
        from hapvr.model.frame_extras import extras_rows  # loads torch

        num_rows += extras_rows(pooled, whitening.dims)
    embed = region_embedder(backbone, whitening, config.device, extras=extras)
    return Extractor(embed, settings, {EXTRAS_SETTING: pooled} if pooled else {}, (num_rows, whitening.dims))


def make_features(project: Project, key: str, *, progress: Progress = no_progress) -> StageResult:
    """Extract [T, 9, D] features of every video of the shard that has frames; the others keep their failed row.

    Videos whose frames and settings are those of an earlier run are not extracted again.
    """
    frames = project.shard(FRAMES_STAGE, key)
    frames.require({"sampling": project.config.sampling.identity_fields()})
    rows = frames.rows()
    digests = {row["video_id"]: row["frames_sha256"] for row in rows if row["status"] == STATUS_OK}
    extractor = open_extractor(project, extras=project.config.features.pooled)

    def make(video_ids: Sequence[str]) -> Generator[VideoEntry, None, None]:
        wanted, shown = frozenset(video_ids), deque[tuple[Sequence[float], Hashes]]()

        def clips() -> Iterator[tuple[str, Frames]]:
            reader = open_frames(project, key)
            for video_id in (video_id for video_id in reader.video_ids if video_id in wanted):
                video = reader.read(video_id)
                shown.append((video.timestamps_s, frame_hashes(video.jpegs)))
                yield video_id, crops(video.jpegs, project.config.backbone.crop_px)

        for video_id, (values,) in embed_by_networks(clips(), [extractor.embed]):
            row = index_row(video_id, len(values), frames_sha256=digests[video_id])
            times, hashes = shown.popleft()
            yield row, feature_columns(video_id, times, values, hashes)

    recipe = ShardRecipe(
        shard=project.shard(STAGE, key),
        settings={**extractor.settings, **extractor.extras, HASH_SETTING: HASH_VERSION},
        inputs={"frames": frames_digest(frames)},
        columns=fields(num_regions=extractor.shape[0], dims=extractor.shape[1]),
        index_columns=INDEX_COLUMNS,
    )
    return build_shard(
        recipe,
        video_ids=list(digests),
        make=make,
        lost=failed_rows(rows, frames_sha256=""),
        reuse=lambda row, _: digests.get(row["video_id"]) == row.get("frames_sha256"),
        progress=progress,
    )


def crops(jpegs: Sequence[bytes], crop_px: int) -> Frames:
    """[N, 3, crop_px, crop_px]; a long video is never whole in memory at its full size."""
    parts = [jpegs[start : start + DECODED_FRAMES] for start in range(0, len(jpegs), DECODED_FRAMES)]
    return np.concatenate([center_crop(decode_jpegs(part), crop_px) for part in parts])


def import_features(
    root: DataRoot,
    file: Path,
    *,
    name: str,
    fps: float = 1.0,
    shard_videos: int = IMPORT_VIDEOS,
    progress: Progress = no_progress,
) -> list[StageResult]:
    """Write every dataset of an HDF5 file as features into the shards `<name>-00000`, ... below `root`.

    fps: frames per second of the features, which the file does not tell; it dates the frames. An unusable dataset becomes a
    failed row, with the reasons of `read_hdf5_features`. Ids stay as they are. Finished shards of the same file are left alone.
    Raises DataError for a file that is not an HDF5 file or holds no features, ArgumentError for a wrong name or fps.
    """
    from hapvr.benchmark.hdf5 import read_hdf5_features, survey_hdf5

    try:
        TypeAdapter(tuple[SourceName, Annotated[float, Field(gt=0, allow_inf_nan=False)]]).validate_python((name, fps))
    except ValidationError as error:
        raise ArgumentError(f"name {name!r} or fps {fps} cannot be used: {explain(error)}") from None
    video_ids, (num_regions, dims) = survey_hdf5(file)
    shape = {"num_regions": num_regions, "dims": dims}
    settings = {"imported": {"format": "hdf5", "sha256": file_sha256(file)}, "fps": fps, **shape}
    results = []
    for number, start in enumerate(range(0, len(video_ids), shard_videos)):
        ids = video_ids[start : start + shard_videos]
        recipe = ShardRecipe(
            shard=Shard(root, STAGE, f"{name}-{number:05d}"),
            settings=settings,
            inputs={"video_ids": hashlib.sha256("\n".join(ids).encode()).hexdigest()},
            columns=fields(**shape),
        )

        def make(pending: Sequence[str]) -> Generator[VideoEntry, None, None]:
            for video_id, features, reason, message in read_hdf5_features(file, pending, (num_regions, dims)):
                if features is None:
                    yield index_row(video_id, 0, reason=reason, message=message), None
                else:
                    times = (np.arange(len(features)) / fps).tolist()
                    yield index_row(video_id, len(features)), feature_columns(video_id, times, features)

        results.append(build_shard(recipe, video_ids=ids, make=make))
        progress(start + len(ids), len(video_ids))
    return results
