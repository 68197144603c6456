"""Registry: the current model as a version, challenger first, champion if it is at least as good."""

import dagster as dg

from assets.evaluation import benchmark_scores
from assets.project import ProjectResource
from assets.training import similarity_model


@dg.asset(
    group_name="registry",
    kinds={"mlflow"},
    deps=[similarity_model, dg.AssetDep(benchmark_scores, partition_mapping=dg.AllPartitionMapping())],
    description="A version of the registered model; `models:/hapvr@champion` scores pairs of raw video files anywhere.",
)
def registered_model(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    from hapvr.stages.registration import make_registered_model

    opened = project.open()
    result = make_registered_model(opened, tags={"dagster.run_id": context.run.root_run_id or context.run_id})
    return dg.MaterializeResult(
        metadata={
            "name": result.version.name,
            "version": result.version.version,
            "champion": result.version.promoted,
            "decision": result.version.reason,
            "mean_target_metric": result.target,
            "mlflow_run": project.run_link(opened, result.run.mlflow_run_id),
            "path": dg.MetadataValue.path(str(result.bundle)),
            "digest": result.digest,
        }
    )
