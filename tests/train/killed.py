"""A training that other tests kill: it runs in a process of its own, started from a server that has
read no data."""

import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from hapvr.steps.project import Project
from hapvr.train.run_folder import read_history
from tests.forked import forking
from tests.train.runs import run


def train_project(config_path: Path, project_folder: Path, run_folder: Path) -> None:
    """Train in this process."""
    import torch

    torch.set_num_threads(1)
    run(Project.open(config_path, folder=project_folder), run_folder)


def start_training(config_path: Path, project_folder: Path, run_folder: Path) -> BaseProcess:
    """The same in another process, which has its libraries loaded already."""
    arguments = (config_path, project_folder, run_folder)
    process = forking().Process(target=train_project, args=arguments)
    process.start()
    return process


def wait_for_step(process: BaseProcess, run_folder: Path, step: int) -> None:
    """Until the history holds that step, or the process has ended."""
    while process.is_alive():
        history = read_history_so_far(run_folder)
        if history and history[-1]["step"] >= step:
            return
        time.sleep(0.002)


def read_history_so_far(run_folder: Path) -> list[dict[str, float]]:
    """The history while it is being written: a line that is not whole yet is left out."""
    try:
        return read_history(run_folder)
    except ValueError:
        return []
