"""Published features in HDF5 as feature shards, without the videos they were made from."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from hapvr.benchmark.hdf5 import ImportedFeatures, read_hdf5_features, survey_hdf5
from hapvr.data.features import ROW_GROUP_ROWS, STAGE, feature_columns, fields
from hapvr.data.filesystem import DataRoot
from hapvr.data.shard_build import ShardRecipe, VideoEntry, build_shard
from hapvr.data.shards import Shard, index_row
from hapvr.errors import ArgumentError
from hapvr.progress import Progress, no_progress
from hapvr.provenance import file_sha256
from hapvr.settings import explain
from hapvr.video.settings import SourceName

SHARD_VIDEOS = 512
PositiveFps = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class FeatureImport:
    """What an import wrote. failures: videos by reason; num_regions, dims: shape per frame; sha256: of the file."""

    shards: tuple[Shard, ...]
    num_new_shards: int
    num_ok: int
    failures: dict[str, int]
    num_regions: int
    dims: int
    sha256: str


def import_features(
    root: DataRoot,
    file: Path,
    *,
    name: str,
    fps: float = 1.0,
    wanted_ids: Sequence[str] = (),
    shard_videos: int = SHARD_VIDEOS,
    progress: Progress = no_progress,
) -> FeatureImport:
    """Write every dataset of an HDF5 file as features into the shards `<name>-00000`, ... below `root`.

    fps: frames per second of the features, which the file does not tell; it dates the frames. wanted_ids: videos that
    should be there, e.g. a benchmark's; one without a dataset becomes a failed row, as an unusable dataset does, with
    the reasons of `read_hdf5_features`. Ids stay as they are. Finished shards of the same file are left alone.
    Raises DataError for a file that is not an HDF5 file or holds no features, ArgumentError for a wrong name or fps.
    """
    try:
        TypeAdapter(SourceName).validate_python(name)
        TypeAdapter(PositiveFps).validate_python(fps)
    except ValidationError as error:
        raise ArgumentError(f"name {name!r} or fps {fps} cannot be used: {explain(error)}") from None
    survey = survey_hdf5(file)
    known = set(survey.video_ids)
    video_ids = [*survey.video_ids, *(video for video in dict.fromkeys(wanted_ids) if video not in known)]
    sha256 = file_sha256(file)
    shape = {"num_regions": survey.num_regions, "dims": survey.dims}
    settings = {"imported": {"format": "hdf5", "sha256": sha256}, "fps": fps, **shape}
    results = []
    for number, start in enumerate(range(0, len(video_ids), shard_videos)):
        ids = video_ids[start : start + shard_videos]
        recipe = ShardRecipe(
            shard=Shard(root, STAGE, f"{name}-{number:05d}"),
            settings=settings,
            inputs={"video_ids": hashlib.sha256("\n".join(ids).encode()).hexdigest()},
            columns=fields(**shape),
            row_group_rows=ROW_GROUP_ROWS,
        )

        def make(pending: Sequence[str]) -> Generator[VideoEntry, None, None]:
            for video in read_hdf5_features(file, video_ids=pending, known=known, **shape):
                yield _entry(video, fps=fps)

        def report(done: int, _total: int, num_frames: int = 0, *, before: int = start) -> None:
            progress(before + done, len(video_ids), num_frames)

        results.append(build_shard(recipe, video_ids=ids, make=make, progress=report))
    reasons = Counter(reason for result in results for reason in result.shard.index()["reason"].to_list() if reason)
    return FeatureImport(
        shards=tuple(result.shard for result in results),
        num_new_shards=sum(result.done for result in results),
        num_ok=sum(result.num_ok for result in results),
        failures=dict(sorted(reasons.items())),
        sha256=sha256,
        **shape,
    )


def _entry(video: ImportedFeatures, *, fps: float) -> VideoEntry:
    if video.features is None:
        return VideoEntry(index_row(video.video_id, 0, reason=video.reason, message=video.message))
    num_frames = len(video.features)
    columns = feature_columns(video.video_id, video.features, (np.arange(num_frames) / fps).tolist())
    return VideoEntry(index_row(video.video_id, num_frames), columns, num_frames)
