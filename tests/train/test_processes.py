"""Several processes, and processes that are killed."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch

from hapvr.config_file import dump_config
from hapvr.model.checkpoint import load_network
from hapvr.steps.project import Project
from hapvr.steps.training import (
    fail_training,
    prepare_training,
    run_training,
    training_command,
    training_environment,
)
from hapvr.train.run_folder import list_checkpoints, read_checkpoint, read_history
from tests.train.killed import read_history_so_far, start_training, wait_for_step
from tests.train.runs import run, same_weights, with_train, without_times

NUM_KILLS = 5


def project_with(project: Project, **changes: object) -> Project:
    """The project with other training settings."""
    return Project(with_train(project, **changes), project.root, project.folder)


@pytest.mark.slow
def test_two_processes_equal_one_with_the_same_batch(
    small_project: Project, tmp_path: Path
) -> None:
    """Losses of two gloo processes are those of one process to rounding, and so are the weights.
    QuadLinear-AP counts the positives above a positive (HAP-VR Eq. 11): where two are equal but for
    rounding, the loss of a single step may jump."""
    steps = 20
    changes = {"steps": steps}
    run(small_project, tmp_path, with_train(small_project, **changes))
    project = project_with(small_project, num_processes=2, **changes)
    training = prepare_training(project, "two-equal-one", tags={})
    run_training(project, training)
    single_losses = [line["loss/total"] for line in read_history(tmp_path) if "loss/total" in line]
    two = [line["loss/total"] for line in read_history(training.folder) if "loss/total" in line]
    assert len(single_losses) == steps
    assert two == pytest.approx(single_losses, rel=1e-2)
    differing = [
        step
        for step, (a, b) in enumerate(zip(single_losses, two, strict=True))
        if b != pytest.approx(a, rel=1e-4)
    ]
    assert len(differing) <= max(steps // 10, 1), differing
    alone = read_checkpoint(list_checkpoints(tmp_path / "checkpoints")[-1])["training"]
    together = read_checkpoint(list_checkpoints(training.folder / "checkpoints")[-1])["training"]
    for name, weights in alone.items():
        torch.testing.assert_close(together[name], weights, rtol=1e-3, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["single process", "one rank"])
def test_ended_training_leaves_no_process(small_project: Project, whom: str) -> None:
    """SIGTERM ends a training after the step, with a checkpoint; a rank that dies ends the others
    and torchrun."""
    never = {"steps": 100_000, "validate_every_steps": 100_000}
    project = project_with(
        small_project, num_processes=1 if whom == "single process" else 2, **never
    )
    training = prepare_training(project, f"ended-{whom.split()[0]}", tags={})
    process = subprocess.Popen(
        training_command(project, training), env=os.environ | training_environment(project)
    )
    while not read_history_so_far(training.folder) and process.poll() is None:
        time.sleep(0.2)
    family = psutil.Process(process.pid).children(recursive=True)
    if whom != "one rank":
        process.terminate()
    else:
        ranks = [
            child
            for child in family
            if "hapvr.trainer" in child.cmdline() and "--nproc-per-node=2" not in child.cmdline()
        ]
        ranks[-1].kill()

    assert process.wait(timeout=90) != 0
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
    message = fail_training(project, training)
    if whom != "one rank":
        assert len(list_checkpoints(training.folder / "checkpoints")) == 1
        assert "run it again to go on" in message


@pytest.mark.slow
def test_killed_at_random_steps_equals_uninterrupted(
    small_project: Project, tmp_path: Path
) -> None:
    """SIGKILL at random moments, each time gone on from the last checkpoint: equal weights and
    losses, bit for bit."""
    rng = random.Random(0)
    steps = 6 * NUM_KILLS
    changes = {"steps": steps, "validate_every_steps": 2}
    config = tmp_path / "config.yaml"
    config.write_text(dump_config(with_train(small_project, **changes)), encoding="utf-8")
    whole = tmp_path / "whole"
    cut = tmp_path / "cut"
    uninterrupted = start_training(config, small_project.folder, whole)
    uninterrupted.join()
    assert uninterrupted.exitcode == 0
    kills = 0
    for target in sorted(rng.sample(range(1, steps - 1), NUM_KILLS)):
        process = start_training(config, small_project.folder, cut)
        wait_for_step(process, cut, target)
        time.sleep(rng.uniform(0, 0.02))
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        # Two are kept; a kill between the write of the next and the removal of the oldest leaves
        # three.
        assert len(list_checkpoints(cut / "checkpoints")) <= 3

    last = start_training(config, small_project.folder, cut)
    last.join()
    assert last.exitcode == 0
    assert kills >= NUM_KILLS - 2  # the last ones may come after the end
    assert same_weights(whole, cut)
    assert without_times(read_history(whole)) == without_times(read_history(cut))
    assert load_network(cut / "network")[1]["steps"] == steps
