"""Ingest: which videos there are, and the files themselves."""

import dagster as dg

from assets import checks, metadata
from assets.partitions import MISSING, SHARDS, synchronize
from assets.project import DATA_TEAM, ProjectResource


@dg.asset(
    group_name="ingest",
    kinds={"parquet"},
    owners=[DATA_TEAM],
    metadata=metadata.columns(
        {
            "video_id": "string: `<source>/<path>`, unique",
            "source": "string: name of the source in the configuration",
            "split": "string: train, validation or test",
            "shard": "string: the partition that holds the video",
            "uri": "string: path, http(s) URL or youtube:<id>",
        }
    ),
    description="One row per video of all sources, assigned to shards of a fixed size; append-only. Registers the shards as partitions.",
)
def video_manifest(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    from hapvr.progress import ProgressLines
    from hapvr.stages.manifest import make_manifest
    from hapvr.stages.sources import snapshot_sources
    from hapvr.storage.manifest import MANIFEST_STAGE, read_manifest

    opened = project.open()
    # This look comes before the manifest is made, so a file that arrives meanwhile is noticed next time.
    snapshot = snapshot_sources(opened, settle_s=0)
    result = make_manifest(opened, progress=ProgressLines(context.log.info, "preparing sources"))
    synchronize(context.instance, list(result.shards))
    manifest = read_manifest(opened.root)
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(manifest),
            "shards": len(result.shards),
            "new_shards": len(result.new_shards),
            "files_ignored": result.num_ignored,
            "videos_by_source": dg.MetadataValue.json(result.counts),
            "path": dg.MetadataValue.path(f"{opened.root.url}/{MANIFEST_STAGE}"),
            "digest": result.digest,
            "offer": snapshot.digest,
            "rows": metadata.table(manifest),
        },
        data_version=dg.DataVersion(result.digest),
    )


@dg.asset(
    group_name="ingest",
    kinds={"parquet"},
    partitions_def=SHARDS,
    deps=[video_manifest],
    owners=[DATA_TEAM],
    metadata=metadata.columns(
        metadata.INDEX
        | {
            "path": "string: of the file, under the data root or where the source has it",
            "num_bytes": "int64",
            "sha256": "string: of the file's bytes",
            "duration_s": "double: as the file states it",
            "fps": "double: as the file states it",
            "width_px": "int32",
            "height_px": "int32",
            "codec": "string",
        }
    ),
    check_specs=checks.specs("videos", checks.VIDEOS),
    automation_condition=MISSING,
    description="The files of a shard, and per video its path, bytes, SHA-256, duration, fps, codec, status and reason.",
)
def videos(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    from hapvr.progress import ProgressLines
    from hapvr.stages.quality import check_videos
    from hapvr.stages.videos import make_videos

    opened = project.open()
    result = make_videos(
        opened, context.partition_key, retry_failed=True, progress=ProgressLines(context.log.info, "looking at videos")
    )
    rows = result.shard.index().select("video_id", "status", "reason", "duration_s", "fps", "codec", "num_bytes")
    return dg.MaterializeResult(
        metadata=metadata.stage(result) | {"rows": metadata.table(rows)},
        data_version=metadata.version(result),
        check_results=checks.results(check_videos(opened, context.partition_key)),
    )
