"""Ingest: sampled frames."""

import dagster as dg

from assets import metadata
from assets.partitions import MISSING, SHARDS
from assets.project import ProjectResource
from assets.videos import videos


@dg.asset(
    group_name="ingest",
    kinds={"parquet"},
    partitions_def=SHARDS,
    deps=[videos],
    automation_condition=MISSING,
    description="Frames at the configured rate as JPEG with their timestamps; a video that cannot be decoded is a row with a reason.",
)
def frames(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    from hapvr.progress import ProgressLines
    from hapvr.stages.frames import make_frames
    from hapvr.storage.contact_sheet import contact_sheet

    result = make_frames(
        project.open(), context.partition_key, progress=ProgressLines(context.log.info, "decoding videos")
    )
    entries = metadata.stage(result)
    if result.num_ok:
        entries["contact_sheet"] = metadata.image(contact_sheet(result.shard))
    return dg.MaterializeResult(metadata=entries)
