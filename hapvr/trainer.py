"""One process of a training: `python -m hapvr.trainer --run-folder F --project-folder P`; torchrun
starts several."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import torch
from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, open_dagster_pipes
from lightning_fabric import Fabric

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
    record = read_record(folder)
    networks = {
        name: f"{found['sha256']} {found.get('precision', '')}"
        for name, found in record["weights"].items()
    }
    settings = project.config.train
    device = choose_device(project.config.device)
    fabric = Fabric(
        accelerator=device.type,
        devices=settings.num_processes,
        strategy="ddp" if settings.num_processes > 1 else "auto",
        precision=settings.precision,
    )
    fabric.launch()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    name = project.config.evaluation.validation
    validate = None if name is None else open_validator(project, name, str(fabric.device))
    with ExitStack() as stack:
        progress: ProgressLog | None = None
        if fabric.is_global_zero:  # only the first rank may talk through Pipes
            piped = DAGSTER_PIPES_CONTEXT_ENV_VAR in os.environ
            say = (
                stack.enter_context(open_dagster_pipes()).log.info
                if piped
                else partial(print, file=sys.stderr)
            )
            progress = ProgressLog(settings.steps, say)

        def open_loggers(first_step: int) -> list[Logger]:
            # MLflow takes two seconds to import, and only the first of several processes needs it.
            from hapvr.registry.runs import TrackedTraining

            assert progress is not None
            if first_step:
                progress.message(f"going on from the checkpoint at step {first_step}")
            tracked = stack.enter_context(
                closing(TrackedTraining(project.tracking_uri, record["mlflow_run_id"]))
            )
            return [History(folder, first_step=first_step), tracked, progress]

        try:
            with naming_full_disk(
                folder, hint="run again, and the training resumes from its last checkpoint"
            ):
                Trainer(
                    project.config,
                    TrainingData(
                        root=project.root,
                        shards=record["shards"],
                        digests=record["data_digests"] | networks,
                        copies=record["copies"],
                    ),
                    folder=folder,
                    fabric=fabric,
                    validate=validate,
                    open_loggers=open_loggers,
                ).fit()
        except HapvrError as error:
            if progress is not None:
                progress.message(str(error))
                (folder / FAILURE_NAME).write_text(str(error), encoding="utf-8")
            return 1

    return 0


if __name__ == "__main__":
    sys.exit(main())
