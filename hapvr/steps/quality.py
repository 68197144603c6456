"""For the asset checks: what became of the videos, and what is wrong with the data of a shard
(losses, duplicates, rates, values)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import polars as pl

from hapvr.data import features, frames
from hapvr.data.manifest import VIDEOS_STAGE, collection_keys, shard_keys
from hapvr.data.shards import STATUS_OK, Shard
from hapvr.errors import DataError
from hapvr.steps.project import Project

MAX_NAMED = 10
MAX_FAILED_RATE = 0.2
"""The largest accepted part of a shard's videos that were fetched, but could not be decoded."""
MAX_FRAME_RATE_ERROR = 0.1
MAX_NORM_ERROR = 0.01

UNAVAILABLE_HINT = (
    "Their sites no longer have them; if the number surprises you, check download.cookies_file "
    "and the proxy, and try again."
)
FAILED_HINT = (
    "`reason` says why. Materialise the shard again, fetch damaged files again, or leave them out."
)
DUPLICATE_HINT = (
    "Equal files count as different videos, so training takes copies for negatives: keep one of "
    "each."
)
UNDECODABLE_HINT = (
    "`reason` says why; `timeout` and `killed` may pass with higher limits of `sampling`."
)
FRAME_RATE_HINT = (
    "Their number of frames does not fit their duration: they are cut off, or a file is wrong. "
    "Play one."
)
VALUES_HINT = (
    "NaN, infinity or zero vectors: weights or whitening are damaged, or half precision "
    "overflowed. Delete the shard's features and materialise them again; if it stays, fit the "
    "whitening again."
)
NORMS_HINT = (
    "Region vectors are not of unit length: they were imported without normalisation, or are "
    "damaged."
)


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    passed: bool
    severity: Literal["warn", "error"]
    """error if later results would be wrong, warn if there would be fewer"""
    values: Mapping[str, Any] = field(default_factory=dict)
    """what was measured"""
    hint: str = ""
    """what to do"""


def check_videos(project: Project, key: str) -> list[Finding]:
    """unavailable_videos, failed_videos, duplicate_videos of a shard; duplicates in the whole
    collection, if the shard belongs to it."""
    index = project.shard(VIDEOS_STAGE, key).index()
    unavailable = index.filter(pl.col("status") == "unavailable")
    failed = index.filter(~pl.col("status").is_in([STATUS_OK, "unavailable"]))
    usable = index.filter(pl.col("status") == STATUS_OK)
    collection = collection_keys(project.root, shard_keys(project.root))
    compared = collection if key in collection else [key]
    tables = []
    for shard_key in compared:
        shard_index = project.shard(VIDEOS_STAGE, shard_key).find()
        if shard_index is not None:
            tables.append(shard_index.frame().select("status", "sha256"))

    everywhere = pl.concat(tables).filter(pl.col("status") == STATUS_OK)
    repeated = everywhere.filter(pl.col("sha256").is_duplicated()).unique()
    copies = usable.join(repeated, on="sha256", how="semi").sort("video_id")
    return [
        _share("unavailable_videos", unavailable, index, 0.5, UNAVAILABLE_HINT),
        _share("failed_videos", failed, index, MAX_FAILED_RATE, FAILED_HINT),
        _share("duplicate_videos", copies, usable, 0.1, DUPLICATE_HINT),
    ]


def check_frames(project: Project, key: str) -> list[Finding]:
    """undecodable_videos, frame_rate and stored_bytes of a shard."""
    sampling = project.config.sampling
    shard = project.shard(frames.STAGE, key)
    index = shard.index()
    videos = project.shard(VIDEOS_STAGE, key).index()
    usable = videos.filter(pl.col("status") == STATUS_OK)
    lost = index.filter(pl.col("status") != STATUS_OK).join(usable, on="video_id", how="semi")
    # In one-second clips a frame more or less is nothing to worry about.
    expected = (pl.col("duration_s") * sampling.fps).clip(upper_bound=sampling.max_frames)
    # the distance of key frames is the encoder's choice
    is_even = pl.lit(True)
    if "sampled" in index.columns:
        is_even = pl.col("sampled").ne_missing("key_frames")
    rates = (
        index.filter((pl.col("status") == STATUS_OK) & is_even)
        .join(videos.select("video_id", "duration_s"), on="video_id")
        .filter(pl.col("duration_s") * sampling.fps >= 1)
    )
    off = rates.filter((pl.col("num_rows") - expected).abs() - 1 > MAX_FRAME_RATE_ERROR * expected)
    return [
        _share("undecodable_videos", lost, index, MAX_FAILED_RATE, UNDECODABLE_HINT),
        _share("frame_rate", off, rates, MAX_FAILED_RATE, FRAME_RATE_HINT),
        check_stored(shard),
    ]


def check_features(project: Project, key: str) -> list[Finding]:
    """feature_values (NaN, infinity, zero), feature_norms and stored_bytes of a shard; reads every
    vector once."""
    shard = project.shard(features.STAGE, key)
    stored = features.FeatureFile(shard)
    bad_values: list[str] = []
    errors: dict[str, float] = {}
    for video_id in stored.video_ids:
        norms = np.linalg.norm(stored.regions(video_id).astype(np.float32), axis=-1)
        if (np.isfinite(norms) & (norms > 0)).all():
            errors[video_id] = float(np.abs(norms - 1).max())
        else:
            bad_values.append(video_id)

    bad_norms = [video_id for video_id, error in errors.items() if error > MAX_NORM_ERROR]
    worst = {"largest_error": max(errors.values(), default=0.0)}
    return [
        Finding("feature_values", not bad_values, "error", _named(bad_values), VALUES_HINT),
        Finding("feature_norms", not bad_norms, "error", _named(bad_norms) | worst, NORMS_HINT),
        check_stored(shard),
    ]


def video_status(project: Project) -> pl.DataFrame:
    """video_id, status, reason, message of every video of the manifest, from its frames (or else
    its file)."""
    tables = []
    for key in shard_keys(project.root):
        index = project.shard("frames", key).find() or project.shard("videos", key).read()
        tables.append(index.frame().select("video_id", "status", "reason", "message"))

    return pl.concat(tables)


def check_stored(shard: Shard) -> Finding:
    """stored_bytes: whether the data file still has the recorded digest."""
    try:
        shard.verify()
    except (DataError, OSError) as error:  # the disk itself may refuse to give a file back
        return Finding("stored_bytes", False, "error", {"state": "damaged"}, str(error))
    return Finding("stored_bytes", True, "error", {"state": "ok"})


def _share(name: str, rows: pl.DataFrame, of: pl.DataFrame, limit: float, hint: str) -> Finding:
    rate = len(rows) / max(len(of), 1)
    values = {"rate": rate, "limit": limit, "of": len(of)} | _named(rows["video_id"].to_list())
    return Finding(name, rate <= limit, "warn", values, hint)


def _named(video_ids: Sequence[str]) -> dict[str, Any]:
    return {"videos": len(video_ids), "examples": list(video_ids[:MAX_NAMED])}
