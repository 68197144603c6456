"""Ingest: which videos there are, the files themselves, and their sampled frames."""

import dagster as dg

from assets import checks, metadata
from assets.factory import Made, step_asset
from assets.partitions import synchronize
from assets.project import DATA_TEAM


def _show_manifest(made: Made) -> dg.MaterializeResult:
    from hapvr.data.manifest import MANIFEST_STAGE, read_manifest

    result, root = made.result, made.project.root
    synchronize(made.context.instance, list(result.shards))
    manifest = read_manifest(root)
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(manifest),
            "shards": len(result.shards),
            "new_shards": len(result.new_shards),
            "files_ignored": result.num_ignored,
            "videos_by_source": dg.MetadataValue.json(result.counts),
            "path": dg.MetadataValue.path(f"{root.url}/{MANIFEST_STAGE}"),
            "digest": result.digest,
            "offer": result.offer,
            "rows": metadata.table(manifest),
        },
        data_version=dg.DataVersion(result.digest),
    )


video_manifest = step_asset(
    "video_manifest",
    _show_manifest,
    group="ingest",
    kinds={"parquet"},
    owner=DATA_TEAM,
    columns={
        "video_id": "string: `<source>/<path>`, unique",
        "source": "string: name of the source in the configuration",
        "split": "string: train, validation or test",
        "shard": "string: the partition that holds the video",
        "uri": "string: path, http(s) URL or youtube:<id>",
    },
    description="One row per video of all sources, assigned to shards of a fixed size; append-only. Registers the shards as partitions.",
)


def _show_videos(made: Made) -> dg.MaterializeResult:
    from hapvr.steps.quality import check_videos

    rows = made.result.shard.index().select("video_id", "status", "reason", "duration_s", "fps", "codec", "num_bytes")
    return metadata.shard(made.result, check_videos(made.project, made.key), more={"rows": metadata.table(rows)})


videos = step_asset(
    "videos",
    _show_videos,
    group="ingest",
    kinds={"parquet"},
    owner=DATA_TEAM,
    columns=metadata.INDEX
    | {
        "path": "string: of the file, under the data root or where the source has it",
        "num_bytes": "int64",
        "sha256": "string: of the file's bytes",
        "duration_s": "double: as the file states it",
        "fps": "double: as the file states it",
        "width_px": "int32",
        "height_px": "int32",
        "codec": "string",
    },
    checks=checks.specs("videos", checks.VIDEOS),
    description="The files of a shard, and per video its path, bytes, SHA-256, duration, fps, codec, status and reason.",
    options=lambda _: {"retry_failed": True},
)


def _show_frames(made: Made) -> dg.MaterializeResult:
    from hapvr.data.frames import SHEET_VIDEOS, contact_sheet
    from hapvr.steps.frames import open_frames
    from hapvr.steps.quality import check_frames

    more = {}
    if made.result.num_ok:
        reader = open_frames(made.project, made.key)
        more["contact_sheet"] = metadata.image(contact_sheet(reader), rows=reader.video_ids[:SHEET_VIDEOS])
    return metadata.shard(made.result, check_frames(made.project, made.key), more=more)


frames = step_asset(
    "frames",
    _show_frames,
    group="ingest",
    kinds={"parquet"},
    owner=DATA_TEAM,
    columns={
        "video_id": "string: rows of a video are contiguous, in time order",
        "frame_index": "int32: from 0",
        "timestamp_s": "double: presentation time in the video",
        "jpeg": "binary: the frame, short side at sampling.short_side_px",
    },
    checks=checks.specs("frames", checks.FRAMES),
    description="Frames at the configured rate as JPEG with their timestamps; a video that cannot be decoded is a row with a reason.",
    options=lambda _: {"retry_failed": True},
)
