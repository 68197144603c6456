"""Ingest: which videos there are, the files themselves, and their sampled frames."""

import dagster as dg

from assets import checks, metadata
from assets.factory import Made, step_asset
from assets.project import SHARDS


def _show_manifest(made: Made) -> dg.MaterializeResult:
    from hapvr.data.manifest import MANIFEST_STAGE, read_manifest

    result, root = made.result, made.project.root
    manifest, instance, name = read_manifest(root), made.context.instance, str(SHARDS.name)
    for stale in set(instance.get_dynamic_partitions(name)) - set(result.shards):  # of another configuration
        instance.delete_dynamic_partition(name, stale)
    instance.add_dynamic_partitions(name, list(result.shards))
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(manifest),
            "shards": len(result.shards),
            "new_shards": len(result.new_shards),
            "videos_by_source": dg.MetadataValue.json(dict(manifest["source"].value_counts(sort=True).iter_rows())),
            "path": dg.MetadataValue.path(f"{root.url}/{MANIFEST_STAGE}"),
            "digest": result.digest,
            "offer": result.offer,
            "rows": metadata.table(manifest),
        },
        data_version=dg.DataVersion(result.digest),
    )


video_manifest = step_asset("video_manifest", _show_manifest, group="ingest", kinds={"parquet"})


def _show_videos(made: Made) -> dg.MaterializeResult:
    from hapvr.steps.quality import check_videos

    rows = made.result.shard.index().select("video_id", "status", "reason", "duration_s", "fps", "codec", "num_bytes")
    return metadata.shard(made.result, check_videos(made.project, made.key), more={"rows": metadata.table(rows)})


videos = step_asset(
    "videos",
    _show_videos,
    group="ingest",
    kinds={"parquet"},
    checks=checks.VIDEOS,
    arguments=lambda _: {"retry_failed": True},
)


def _show_frames(made: Made) -> dg.MaterializeResult:
    from hapvr.data.frames import SHEET_VIDEOS, contact_sheet
    from hapvr.steps.quality import check_frames
    from hapvr.steps.videos import open_frames

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
    checks=checks.FRAMES,
    arguments=lambda _: {"retry_failed": True},
)
