"""Search: descriptors of all frames by the champion, and the index over them."""

import dagster as dg

from assets import checks, metadata
from assets.features import features
from assets.partitions import GPU_POOL, SHARDS
from assets.project import DATA_TEAM, ProjectResource
from assets.registry import registered_model

RECALL = "recall"
INDEX_CHECKS = {RECALL: "Stored vectors that are searched for find their exact nearest neighbours."}
REMEDY = (
    "Nothing is lost: the index before this one goes on answering if there is one. Raise search.index.probed_lists, "
    "refine_factor or code_bits, and materialise the asset again."
)


@dg.asset(
    group_name="search",
    kinds={"pytorch", "parquet"},
    pool=GPU_POOL,
    partitions_def=SHARDS,
    deps=[features, registered_model],
    owners=[DATA_TEAM],
    metadata=metadata.columns(
        {
            "video_id": "string: rows of a video are contiguous, in time order",
            "frame_index": "int32: from 0",
            "timestamp_s": "double: presentation time in the video",
            "reason": "string: why the frame cannot be found, blank or frozen; else empty",
            "vector": "fixed_size_binary: [whitening.dims] float16, a unit vector; shape and dtype in the field's metadata",
        }
    ),
    description="A vector per frame, from the regions that the champion weighs; another champion gets descriptors of its own.",
)
def frame_descriptors(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    from hapvr.progress import ProgressLines
    from hapvr.stages.descriptors import make_descriptors
    from hapvr.stages.search_model import search_model

    opened = project.open()
    model = search_model(opened)
    progress = ProgressLines(context.log.info, "describing frames")
    result = make_descriptors(opened, context.partition_key, model, progress=progress)
    return dg.MaterializeResult(
        metadata={
            **metadata.stage(result),
            "model": model.uri,
            "frames_kept": int(result.shard.index()["num_kept"].sum()),
        },
        data_version=metadata.version(result),
    )


@dg.asset(
    group_name="search",
    kinds={"lance"},
    deps=[dg.AssetDep(frame_descriptors, partition_mapping=dg.AllPartitionMapping())],
    owners=[DATA_TEAM],
    check_specs=checks.specs("search_index", INDEX_CHECKS),
    description=(
        "What searches look into. Shards that are new or were made again are taken in; the index of a new champion answers "
        "when it has passed its check, and until then the one before."
    ),
)
def search_index(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    from hapvr.progress import ProgressLines
    from hapvr.stages.search_index import update_index
    from hapvr.stages.search_model import search_model

    opened = project.open()
    model = search_model(opened)
    made = update_index(opened, model, progress=ProgressLines(context.log.info, "indexing shards"))
    place = made.serving.place if made.serving is not None else "none"
    result = dg.AssetCheckResult(
        check_name=RECALL,
        passed=made.passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=None if made.passed else REMEDY,
        metadata={
            "recall": made.recall,
            "wanted": opened.config.search.index.min_recall,
            **({} if made.passed else {"remedy": REMEDY}),
        },
    )
    return dg.MaterializeResult(
        metadata={
            "model": model.uri,
            "dagster/row_count": made.status.frames,
            "videos": made.status.videos,
            "unindexed_frames": made.status.unindexed_frames,
            "recall": made.recall,
            **{
                name: dg.MetadataValue.json(list(getattr(made, name)))
                for name in ("added", "replaced", "removed", "awaited")
            },
            "answers": made.passed,
            "path": dg.MetadataValue.path(f"{opened.root.url}/{place}"),
            "digest": made.status.digest,
            "was_finished": not made.done,
        },
        data_version=dg.DataVersion(made.status.digest),
        check_results=[result],
    )
