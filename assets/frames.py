"""Ingest: sampled frames."""

import dagster as dg

from assets import checks, metadata
from assets.partitions import MISSING, SHARDS
from assets.project import DATA_TEAM, ProjectResource
from assets.videos import videos


@dg.asset(
    group_name="ingest",
    kinds={"parquet"},
    partitions_def=SHARDS,
    deps=[videos],
    owners=[DATA_TEAM],
    metadata=metadata.columns(
        {
            "video_id": "string: rows of a video are contiguous, in time order",
            "frame_index": "int32: from 0",
            "timestamp_s": "double: presentation time in the video",
            "jpeg": "binary: the frame, short side at sampling.short_side_px",
        }
    ),
    check_specs=checks.specs("frames", checks.FRAMES),
    automation_condition=MISSING,
    description="Frames at the configured rate as JPEG with their timestamps; a video that cannot be decoded is a row with a reason.",
)
def frames(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    from hapvr.progress import ProgressLines
    from hapvr.stages.frames import make_frames, open_frames
    from hapvr.stages.quality import check_frames
    from hapvr.storage.frames import SHEET_VIDEOS, contact_sheet

    opened = project.open()
    result = make_frames(
        opened, context.partition_key, retry_failed=True, progress=ProgressLines(context.log.info, "decoding videos")
    )
    entries = metadata.stage(result)
    if result.num_ok:
        with open_frames(opened, context.partition_key) as reader:
            entries["contact_sheet"] = metadata.image(contact_sheet(reader), rows=reader.video_ids[:SHEET_VIDEOS])
    return dg.MaterializeResult(
        metadata=entries,
        data_version=metadata.version(result),
        check_results=checks.results(check_frames(opened, context.partition_key)),
    )
