"""Features: whitening, and whitened region features of whole videos."""

import dagster as dg

from assets import checks, metadata
from assets.frames import frames
from assets.partitions import GPU_POOL, MISSING, MISSING_WITH_SHARDS, SHARDS
from assets.project import DATA_TEAM, ProjectResource


@dg.asset(
    group_name="features",
    kinds={"pytorch"},
    pool=GPU_POOL,
    deps=[dg.AssetDep(frames, partition_mapping=dg.AllPartitionMapping())],
    owners=[DATA_TEAM],
    automation_condition=MISSING_WITH_SHARDS,
    description="PCA whitening of region vectors, fitted once on a sample of training frames; kept while its settings hold.",
)
def whitening(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    from hapvr.features.whitening import WEIGHTS_NAME
    from hapvr.progress import ProgressLines
    from hapvr.stages.whitening import make_whitening
    from hapvr.storage.manifest import read_manifest, training_shard_keys

    opened = project.open()
    shards = training_shard_keys(read_manifest(opened.root))
    result = make_whitening(opened, shards, progress=ProgressLines(context.log.info, "fitting whitening"))
    return dg.MaterializeResult(
        metadata={
            "dims": result.whitening.dims,
            "regions": int(result.provenance.environment["num_regions"]),
            "backbone_weights": str(result.provenance.settings.get("backbone", {}).get("source", "imported")),
            "path": dg.MetadataValue.path(f"{opened.root.url}/{WEIGHTS_NAME}"),
            "digest": result.whitening.sha256,
            "was_finished": not result.done,
            "fitted_on": dg.MetadataValue.json(dict(result.provenance.inputs)),
        },
        data_version=dg.DataVersion(result.whitening.sha256),
    )


@dg.asset(
    group_name="features",
    kinds={"pytorch", "parquet"},
    pool=GPU_POOL,
    partitions_def=SHARDS,
    deps=[frames, whitening],
    owners=[DATA_TEAM],
    metadata=metadata.columns(
        {
            "video_id": "string: rows of a video are contiguous, in time order",
            "frame_index": "int32: from 0",
            "timestamp_s": "double: presentation time in the video",
            "regions": "fixed_size_binary: [9, whitening.dims] float16, unit vectors; shape and dtype in the field's metadata",
        }
    ),
    check_specs=checks.specs("features", checks.FEATURES),
    automation_condition=MISSING,
    description="Region features [T, 9, D] in half precision of every video of the shard, one row per frame.",
)
def features(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    from hapvr.progress import ProgressLines
    from hapvr.stages.features import make_features
    from hapvr.stages.quality import check_features

    opened = project.open()
    result = make_features(
        opened, context.partition_key, progress=ProgressLines(context.log.info, "extracting features")
    )
    return dg.MaterializeResult(
        metadata=metadata.stage(result),
        data_version=metadata.version(result),
        check_results=checks.results(check_features(opened, context.partition_key)),
    )
