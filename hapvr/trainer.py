"""One process of a training: `python -m hapvr.trainer --run-folder F --project-folder P`; torchrun
starts several."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, open_dagster_pipes
from lightning_fabric import Fabric

from hapvr.config import Config
from hapvr.errors import HapvrError
from hapvr.files import naming_full_disk
from hapvr.networks.torch_runtime import choose_device
from hapvr.steps.benchmark_features import open_validator
from hapvr.steps.project import Project
from hapvr.train.loop import Trainer, TrainingData
from hapvr.train.run_folder import CONFIG_NAME, FAILURE_NAME, History, Logger, read_record

REPORT_EVERY_S = 5.0


class ProgressLog(Logger):
    """A logger that prints metrics as lines, at most one every REPORT_EVERY_S seconds. It prints
    every validation."""

    def __init__(self, steps: int, say: Callable[[str], object]) -> None:
        self._steps = steps
        self._last = 0.0
        self._say = say

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        validation = {
            name: value for name, value in values.items() if name.startswith("validation/")
        }
        now = time.monotonic()
        if not validation and now - self._last < REPORT_EVERY_S and step + 1 < self._steps:
            return
        self._last = now
        names = ("loss/total", "learning_rate", "clips_per_s")
        shown = validation or {name: values[name] for name in names if name in values}
        listed = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
        self.message(f"step {step + 1}/{self._steps}: {listed}")

    def message(self, text: str) -> None:
        self._say(text)


class Report:
    """What the first process of a training tells: lines of progress, the history in the folder of
    the run, and MLflow's run. A context, which ends what it has opened."""

    def __init__(self, project: Project, folder: Path, record: Mapping[str, Any]) -> None:
        self._project = project
        self._folder = folder
        self._record = record
        self._opened = ExitStack()
        self._progress = ProgressLog(project.config.train.steps, self._open_channel())

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def open_loggers(self, first_step: int) -> list[Logger]:
        """As `Trainer` wants them."""
        # MLflow takes two seconds to import, and only the first of several processes needs it.
        from hapvr.registry.runs import TrackedTraining

        if first_step:
            self._progress.message(f"going on from the checkpoint at step {first_step}")
        tracked = TrackedTraining(self._project.tracking_uri, self._record["mlflow_run_id"])
        self._opened.enter_context(closing(tracked))
        return [History(self._folder, first_step=first_step), tracked, self._progress]

    def failed(self, error: HapvrError) -> None:
        """Say why a training ended, also to whoever reads its folder later."""
        self._progress.message(str(error))
        (self._folder / FAILURE_NAME).write_text(str(error), encoding="utf-8")

    def _open_channel(self) -> Callable[[str], object]:
        """To Dagster, where it started this process, else standard error."""
        if DAGSTER_PIPES_CONTEXT_ENV_VAR in os.environ:
            return self._opened.enter_context(open_dagster_pipes()).log.info
        return partial(print, file=sys.stderr)


def start_processes(config: Config) -> Fabric:
    """The processes of a training on their device, of which this is one."""
    device = choose_device(config.device)
    several = config.train.num_processes > 1
    fabric = Fabric(
        accelerator=device.type,
        devices=config.train.num_processes,
        strategy="ddp" if several else "auto",
        precision=config.train.precision,
    )
    fabric.launch()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    return fabric


def training_data(project: Project, record: Mapping[str, Any]) -> TrainingData:
    """What `prepare_training` wrote down of the data of a run."""
    networks = {
        name: f"{weights['sha256']} {weights.get('precision', '')}"
        for name, weights in record["weights"].items()
    }
    return TrainingData(
        root=project.root,
        shards=record["shards"],
        digests=record["data_digests"] | networks,
        copies=record["copies"],
    )


def no_loggers(first_step: int) -> list[Logger]:
    """Of a process that is not the first."""
    return []


def main() -> int:
    """0: done; 1: failed, or stopped on request, with a checkpoint."""
    parser = argparse.ArgumentParser(
        prog="hapvr.trainer", description="Train in a prepared run folder."
    )
    parser.add_argument("--run-folder", type=Path, required=True)
    parser.add_argument("--project-folder", type=Path, required=True)
    arguments = parser.parse_args()
    folder: Path = arguments.run_folder
    project = Project.open(folder / CONFIG_NAME, folder=arguments.project_folder)
    config = project.config
    record = read_record(folder)

    fabric = start_processes(config)
    benchmark = config.evaluation.validation
    validate = None
    if benchmark is not None:
        validate = open_validator(project, benchmark, str(fabric.device))
    hint = "run again, and the training resumes from its last checkpoint"
    with ExitStack() as stack:
        report: Report | None = None
        if fabric.is_global_zero:  # only the first process may talk to Dagster
            report = stack.enter_context(Report(project, folder, record))
        try:
            with naming_full_disk(folder, hint=hint):
                trainer = Trainer(
                    config,
                    training_data(project, record),
                    folder=folder,
                    fabric=fabric,
                    validate=validate,
                    open_loggers=no_loggers if report is None else report.open_loggers,
                )
                trainer.fit()
        except HapvrError as error:
            if report is not None:
                report.failed(error)
            return 1

    return 0


if __name__ == "__main__":
    sys.exit(main())
