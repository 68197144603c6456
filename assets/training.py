"""Training: one torchrun process through Dagster Pipes, one MLflow run."""

from typing import TYPE_CHECKING

import dagster as dg

from assets import metadata
from assets.features import features
from assets.partitions import GPU_POOL
from assets.project import MODEL_TEAM, ProjectResource
from assets.views import training_data

if TYPE_CHECKING:
    from hapvr.stages.project import Project
    from hapvr.stages.training import TrainingRun


def training_key(run: dg.DagsterRun) -> str:
    """The id of the run's first attempt. It names the training, so a retry goes on from the checkpoint of that attempt."""
    return run.root_run_id or run.run_id


def model_of_run(run: dg.DagsterRun, project: "Project") -> "TrainingRun":
    """What this run, or an earlier attempt of it, has trained; else the model that was trained last.

    So a run evaluates and registers its own model, also if another training ended meanwhile. Raises DataError if there is
    no model yet.
    """
    from hapvr.stages.training import trained_run

    return trained_run(project, training_key(run))


@dg.asset(
    group_name="training",
    kinds={"pytorch", "mlflow"},
    pool=GPU_POOL,
    owners=[MODEL_TEAM],
    deps=[*training_data.keys, dg.AssetDep(features, partition_mapping=dg.AllPartitionMapping())],
    description="Attention and comparator trained on the cached views; a retried run goes on from its last checkpoint.",
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
    dagster_run = training_key(context.run)
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
