"""One process of a training: `python -m hapvr.trainer --run-folder F --project-folder P`; torchrun starts several."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

import torch
from lightning_fabric import Fabric

from hapvr.errors import HapvrError
from hapvr.files import naming_full_disk
from hapvr.networks.extract import choose_device
from hapvr.registry.progress import progress_logger
from hapvr.steps.project import Project
from hapvr.steps.validation import Validator
from hapvr.train.labelled_pairs import read_labelled_pairs
from hapvr.train.loop import Trainer, TrainingStoppedError
from hapvr.train.run_folder import CONFIG_NAME, FAILURE_NAME, History, Logger, read_record

STOPPED = 3


def main() -> int:
    """0: done; 1: failed; 3: stopped on request, with a checkpoint."""
    parser = argparse.ArgumentParser(prog="hapvr.trainer", description="Train in a prepared run folder.")
    parser.add_argument("--run-folder", type=Path, required=True)
    parser.add_argument("--project-folder", type=Path, required=True)
    arguments = parser.parse_args()
    folder: Path = arguments.run_folder
    project = Project.open(folder / CONFIG_NAME, folder=arguments.project_folder)
    record = read_record(folder)
    networks = {name: f"{found['sha256']} {found.get('precision', '')}" for name, found in record["weights"].items()}
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
    validate = None if name is None else Validator(project, name, str(fabric.device))
    with ExitStack() as stack:
        progress = stack.enter_context(progress_logger(settings.steps, is_main=fabric.is_global_zero))

        def open_loggers(first_step: int) -> list[Logger]:
            # MLflow takes two seconds to import, and only the first of several processes needs it.
            from hapvr.registry.runs import tracked_training
            from hapvr.steps.training import tracker_of

            assert progress is not None
            if first_step:
                progress.message(f"going on from the checkpoint at step {first_step}")
            tracked = stack.enter_context(
                tracked_training(lambda: tracker_of(project), record["mlflow_run_id"], folder, say=progress.message)
            )
            return [History(folder, first_step=first_step), tracked, progress]

        try:
            with naming_full_disk(folder, hint="run again, and the training resumes from its last checkpoint"):
                Trainer(
                    project.config,
                    project.root,
                    record["shards"],
                    data=record["data_digests"] | networks,
                    labelled=read_labelled_pairs(folder) if settings.source == "labelled_pairs" else None,
                    folder=folder,
                    fabric=fabric,
                    validate=validate,
                    open_loggers=open_loggers,
                ).fit()
        except HapvrError as error:
            if progress is not None:
                progress.message(str(error))
                (folder / FAILURE_NAME).write_text(str(error), encoding="utf-8")
            return STOPPED if isinstance(error, TrainingStoppedError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
