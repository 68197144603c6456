"""Training: one torchrun process through Dagster Pipes, one MLflow run."""

import dagster as dg

from assets import metadata
from assets.chain import chain_id
from assets.features import features
from assets.partitions import GPU_POOL
from assets.project import MODEL_TEAM, ProjectResource
from assets.views import pseudo_labels, training_views


@dg.asset(
    group_name="training",
    kinds={"pytorch", "mlflow"},
    pool=GPU_POOL,
    owners=[MODEL_TEAM],
    deps=[training_views, pseudo_labels, dg.AssetDep(features, partition_mapping=dg.AllPartitionMapping())],
    description=metadata.retrained(
        "Attention and comparator trained on the cached views; a retried run goes on from its last checkpoint."
    ),
)
def similarity_model(
    context: dg.AssetExecutionContext, project: ProjectResource, pipes_subprocess_client: dg.PipesSubprocessClient
) -> dg.MaterializeResult:
    from hapvr.stages.training import (
        fail_training,
        finish_training,
        prepare_training,
        training_command,
        training_environment,
    )
    from hapvr.train.plots import loss_figure, validation_figure
    from hapvr.train.report import read_history

    opened = project.open()
    dagster_run = chain_id(context.run)
    run = prepare_training(opened, dagster_run, tags=project.dagster_tags(dagster_run))
    link = project.run_link(opened, run.mlflow_run_id)
    context.log.info(f"MLflow run {run.mlflow_run_id}: {link.value}")
    context.instance.add_run_tags(context.run_id, {"mlflow/run_id": run.mlflow_run_id})
    try:
        pipes_subprocess_client.run(
            context=context,
            command=training_command(opened, run),
            cwd=str(opened.folder),
            env=training_environment(opened),
        )
    except Exception as error:
        raise dg.Failure(fail_training(opened, run)) from error
    except BaseException:  # the run was cancelled
        fail_training(opened, run)
        raise
    result = finish_training(opened, run)
    history = read_history(run.folder)
    return dg.MaterializeResult(
        metadata={
            "videos": result["num_videos"],
            "steps": result["steps"],
            "best_step": result["best_step"],
            "seconds": result["seconds"],
            "mlflow_run": link,
            "path": dg.MetadataValue.path(str(run.folder)),
            "digest": result["weights_sha256"],
            "loss_curves": metadata.figure(loss_figure(history)),
            "validation_curve": metadata.figure(validation_figure(history)),
        },
        data_version=dg.DataVersion(result["weights_sha256"]),
    )
