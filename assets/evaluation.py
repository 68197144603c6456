"""Evaluation: similarities, metrics and plots of each benchmark."""

import dagster as dg

from assets import metadata
from assets.chain import chain_model
from assets.features import features
from assets.partitions import BENCHMARKS, GPU_POOL
from assets.project import MODEL_TEAM, ProjectResource
from assets.training import similarity_model


@dg.asset(
    group_name="evaluation",
    kinds={"pytorch", "mlflow"},
    pool=GPU_POOL,
    owners=[MODEL_TEAM],
    partitions_def=BENCHMARKS,
    deps=[similarity_model, dg.AssetDep(features, partition_mapping=dg.AllPartitionMapping())],
    metadata=metadata.columns(
        {
            "query_id": "string: of similarities-*.parquet, a row per pair that was scored",
            "reference_id": "string",
            "similarity": "float: in [-1, 1], higher is closer",
        }
    ),
    description=metadata.retrained(
        "mAP and micro-AP of every task, of the trained model and of the untrained baseline, with plots."
    ),
)
def benchmark_scores(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    from hapvr.provenance import file_sha256
    from hapvr.stages.evaluation import TRAINED, make_benchmark_scores

    opened = project.open()
    scores = make_benchmark_scores(opened, chain_model(context.run, opened), context.partition_key)
    availability = scores.results[TRAINED].availability
    return dg.MaterializeResult(
        metadata={
            "metrics": dg.MetadataValue.md(scores.markdown),
            **{f"mAP or micro-AP: {task}": value for task, value in scores.results[TRAINED].metrics.items()},
            "queries_scored": f"{availability.num_queries_scored} of {availability.num_queries}",
            "references_scored": f"{availability.num_references_scored} of {availability.num_references}",
            "mlflow_run": project.run_link(opened, scores.run.mlflow_run_id),
            "path": dg.MetadataValue.path(str(scores.folder)),
            "digest": scores.digest,
            **{name: metadata.figure(figure) for name, figure in scores.figures.items()},
        },
        data_version=dg.DataVersion(file_sha256(scores.folder / "scores.json")),
    )
