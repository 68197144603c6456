"""Training: one process, or several by torchrun, through Dagster Pipes; one MLflow run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from assets import metadata
from assets.factory import chain_asset
from assets.project import ProjectResource

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hapvr.steps.training import TrainingRun


NOT_TRAINED = (
    "nothing is trained, and the untrained baseline stays: evaluation.benchmarks names no "
    "benchmark that could show whether a trained model is better (configs/own_videos.yaml holds "
    "one out of your clips)"
)
KEEP_IF_UNCHANGED = "{ops: {similarity_model: {config: {keep_if_unchanged: true}}}}"


class TrainingConfig(dg.Config):
    """keep_if_unchanged: keep the current model if neither training data nor settings changed since
    it was trained."""

    keep_if_unchanged: bool = False


def training_key(run: dg.DagsterRun) -> str:
    """The id of the run's first attempt. It names the training, so a retry resumes from that
    attempt's checkpoint."""
    return run.root_run_id or run.run_id


@chain_asset(
    "similarity_model", group="training", kinds={"pytorch", "mlflow"}, output_required=False
)
def similarity_model(
    context: dg.AssetExecutionContext,
    config: TrainingConfig,
    project: ProjectResource,
    pipes_subprocess_client: dg.PipesSubprocessClient,
) -> Iterator[dg.MaterializeResult]:
    from hapvr.steps.baseline import ensure_baseline
    from hapvr.steps.pending_training import pending_data
    from hapvr.steps.training import (
        fail_training,
        finish_training,
        prepare_training,
        trained_run,
        training_command,
        training_environment,
    )

    opened = project.open()
    ensure_baseline(opened)
    if not opened.config.evaluation.benchmarks:
        context.log.warning(NOT_TRAINED)
        return

    if pending_data(opened).is_empty:
        current = trained_run(opened)
        context.log.warning(
            f"Neither training data nor settings changed since model {current.key} was "
            "trained, so a training gives the same weights again. To keep that model, launch the "
            f"run with this configuration: {KEEP_IF_UNCHANGED}"
        )
        if config.keep_if_unchanged:
            yield _trained(current, project.run_link(opened, current.mlflow_run_id))
            return

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

    finish_training(opened, run)
    yield _trained(run, link)


def history_figure(history: Sequence[Mapping[str, float]], prefix: str, *, title: str) -> "Figure":
    """Every metric whose name begins with the prefix, such as "loss/" or "validation/", over
    steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    names = dict.fromkeys(name for line in history for name in line if name.startswith(prefix))
    for name in names:
        points = [(line["step"] + 1, line[name]) for line in history if name in line]
        axes.plot(*zip(*points, strict=True), label=name.removeprefix(prefix), linewidth=1.2)

    axes.set(xlabel="step", title=title)
    if names:
        axes.legend(fontsize="x-small", ncols=2)
    axes.grid(alpha=0.3)
    return figure


def _trained(run: "TrainingRun", link: dg.MetadataValue) -> dg.MaterializeResult:
    """The metadata of a finished training."""
    from hapvr.steps.training import training_result
    from hapvr.train.run_folder import read_history

    result = training_result(run)
    history = read_history(run.folder)
    losses = history_figure(history, "loss/", title="loss terms (unweighted)")
    validation = history_figure(history, "validation/", title="validation")
    return dg.MaterializeResult(
        metadata={
            "videos": result["num_videos"],
            "steps": result["steps"],
            "best_step": result["best_step"] + 1,  # of `steps`, as the curves count
            "minutes": round(result["seconds"] / 60, 1),
            "mlflow_run": link,
            "path": dg.MetadataValue.path(str(run.folder)),
            "digest": result["weights_sha256"],
            "loss_curves": metadata.figure(losses),
            "validation_curve": metadata.figure(validation),
        },
        data_version=dg.DataVersion(result["weights_sha256"]),
    )
