"""The job `sweep`: several seeds, and a grid over configuration keys, as MLflow runs below one parent."""

from pathlib import Path

import dagster as dg

from assets.project import ProjectResource
from pipelines.jobs import run_tags


class SweepConfig(dg.Config):
    """seeds: how many, from `train.seed` on. grid: dotted keys of `train` to the values that are tried."""

    seeds: int = 3
    grid: dict[str, list[str]] = {}  # noqa: RUF012  # Dagster's config classes are pydantic models


@dg.op(pool="gpu", out=dg.Out(dg.Nothing), description="Trains each combination with each seed, one after the other.")
def train_sweep(context: dg.OpExecutionContext, config: SweepConfig, project: ProjectResource) -> None:
    import yaml

    from hapvr.stages.project import Project
    from hapvr.stages.sweeps import grid_rows, run_sweep

    folder = Path(project.folder)
    dagster_run = context.run.root_run_id or context.run_id
    sweep = run_sweep(
        lambda more: Project.open(folder / project.config_path, folder=folder, overrides={**project.overrides, **more}),
        key=dagster_run[:8],
        seeds=config.seeds,
        rows=grid_rows({key: [yaml.safe_load(value) for value in values] for key, values in config.grid.items()}),
        tags=project.dagster_tags(dagster_run),
        say=context.log.info,
    )
    link = project.run_link(project.open(), sweep.mlflow_run_id)
    context.add_output_metadata(
        {"summary": dg.MetadataValue.md(sweep.table), "mlflow_run": link, "trainings": len(sweep.runs)}
    )
    failed = [run for run in sweep.runs if run.failure]
    if failed:
        raise dg.Failure(f"{len(failed)} of {len(sweep.runs)} trainings failed: {failed[0].failure}")


@dg.job(
    name="sweep",
    executor_def=dg.in_process_executor,
    tags=run_tags("sweep"),
    description="Trainings over seeds and settings on what there is, with a table of mean and spread; none is registered.",
)
def sweep() -> None:
    train_sweep()
