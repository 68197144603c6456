"""Evaluation: similarities, metrics and plots of every benchmark."""

import hashlib
from typing import TYPE_CHECKING

import dagster as dg

from assets import metadata
from assets.features import features
from assets.partitions import GPU_POOL
from assets.project import MODEL_TEAM, ProjectResource
from assets.training import model_of_run, similarity_model

if TYPE_CHECKING:
    from hapvr.stages.evaluation import BenchmarkScores


@dg.asset(
    group_name="evaluation",
    kinds={"pytorch", "mlflow"},
    pool=GPU_POOL,
    owners=[MODEL_TEAM],
    deps=[similarity_model, dg.AssetDep(features, partition_mapping=dg.AllPartitionMapping())],
    metadata=metadata.columns(
        {
            "query_id": "string: of similarities-*.parquet, a row per pair that was scored",
            "reference_id": "string",
            "similarity": "float: in [-1, 1], higher is closer",
        }
    ),
    description="mAP and micro-AP of every task of every benchmark, of the trained model and of the untrained baseline, with plots.",
)
def benchmark_scores(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    from hapvr.provenance import file_sha256
    from hapvr.stages.evaluation import TRAINED, make_benchmark_scores

    opened = project.open()
    run = model_of_run(context.run, opened)
    made = {}
    for name in opened.config.evaluation.benchmarks:
        context.log.info(f"scoring {name}")
        made[name] = make_benchmark_scores(opened, run, name)
    files = {name: file_sha256(scores.folder / "scores.json") for name, scores in made.items()}
    digest = hashlib.sha256("".join(f"{name} {file}\n" for name, file in sorted(files.items())).encode()).hexdigest()
    # One number per entry: Dagster draws these over time.
    metrics = {
        f"{name}: {task.metric} {task.task}": task.value
        for name, scores in made.items()
        for task in scores.results[TRAINED].tasks
    }
    figures = {
        f"{name}: {title}": metadata.figure(figure)
        for name, scores in made.items()
        for title, figure in scores.figures.items()
    }
    return dg.MaterializeResult(
        metadata={
            "metrics": dg.MetadataValue.md("\n\n".join(_table(name, scores) for name, scores in made.items())),
            **metrics,
            "mlflow_run": project.run_link(opened, run.mlflow_run_id),
            "path": dg.MetadataValue.path(str(run.folder / "benchmarks")),
            "digest": digest,
            **figures,
        },
        data_version=dg.DataVersion(digest),
    )


def _table(name: str, scores: "BenchmarkScores") -> str:
    """How much of a benchmark could be scored, and every metric of both models in percent."""
    from hapvr.stages.evaluation import TRAINED

    counts = scores.results[TRAINED].availability
    scored = (
        f"{counts.num_queries_scored} of {counts.num_queries} queries and {counts.num_references_scored} of "
        f"{counts.num_references} references scored"
    )
    return f"**{name}**: {scored}\n\n{scores.markdown}"
