"""Training data: augmented views as features, and the teacher's pseudo labels of the same views."""

import dagster as dg

from assets import checks, metadata
from assets.features import whitening
from assets.frames import frames
from assets.partitions import GPU_POOL, TRAINING_SHARDS
from assets.project import DATA_TEAM, ProjectResource

FRAMES_OF_SHARD = dg.AssetDep(frames, partition_mapping=dg.IdentityPartitionMapping())


@dg.asset(
    group_name="training",
    kinds={"pytorch", "parquet"},
    pool=GPU_POOL,
    partitions_def=TRAINING_SHARDS,
    deps=[FRAMES_OF_SHARD, whitening],
    owners=[DATA_TEAM],
    metadata=metadata.columns(
        {
            "video_id": "string: a row per view; the views of a video are contiguous",
            "view_index": "int32: from 0 within the video; weak views come first",
            "strength": "string: weak or strong",
            "operations": "string: JSON list of what was done to the clip",
            "donor_id": "string: the video that was put into the picture, else empty",
            "source_index": "list<int32>: the video's frame that each of the T frames shows",
            "regions": "fixed_size_binary: [T, 9, whitening.dims] float16, unit vectors",
        }
    ),
    check_specs=checks.specs("training_views", checks.STORED),
    description=metadata.retrained(
        "Region features [T, 9, D] of weakly and strongly augmented clips of every training video, and what was done to them."
    ),
)
def training_views(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    from hapvr.progress import ProgressLines
    from hapvr.stages.quality import check_stored
    from hapvr.stages.views import make_training_views
    from hapvr.storage.views import operations_table

    result = make_training_views(
        project.open(), context.partition_key, progress=ProgressLines(context.log.info, "making views")
    )
    return dg.MaterializeResult(
        metadata=metadata.stage(result) | {"operations": metadata.table(operations_table(result.shard))},
        data_version=metadata.version(result),
        check_results=checks.results([check_stored(result.shard)]),
    )


@dg.asset(
    group_name="training",
    kinds={"pytorch", "parquet"},
    pool=GPU_POOL,
    partitions_def=TRAINING_SHARDS,
    deps=[FRAMES_OF_SHARD],
    owners=[DATA_TEAM],
    metadata=metadata.columns(
        {
            "video_id": "string: a row per pair of views of the video",
            "query_view": "int32: view_index of the rows of the label matrix",
            "reference_view": "int32: view_index of its columns",
            "labels": "fixed_size_binary: [T, T] int8: 1 the same content, -1 other content, 0 not used",
        }
    ),
    check_specs=checks.specs("pseudo_labels", checks.STORED),
    description=metadata.retrained(
        "The teacher's embeddings [T, D'] of the same views and ternary frame labels of all view pairs of a video."
    ),
)
def pseudo_labels(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    from hapvr.progress import ProgressLines
    from hapvr.stages.quality import check_stored
    from hapvr.stages.views import label_rates, make_pseudo_labels

    result = make_pseudo_labels(
        project.open(), context.partition_key, progress=ProgressLines(context.log.info, "embedding views")
    )
    return dg.MaterializeResult(
        metadata=metadata.stage(result) | {"label_rates": dg.MetadataValue.json(label_rates(result.shard))},
        data_version=metadata.version(result),
        check_results=checks.results([check_stored(result.shard)]),
    )
