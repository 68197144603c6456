"""Runs of a training, and its metrics on their way to MLflow, with and without a server."""

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hapvr.registry.runs import TrackedTraining, Tracker, complete_metrics
from hapvr.steps.project import Project
from hapvr.steps.training import (
    finish_training,
    prepare_training,
    training_command,
    training_environment,
)
from hapvr.train.run_folder import read_history
from pipelines.ui import free_port
from tests.registry.empty_store import mlflow_server
from tests.train.killed import read_history_so_far
from tests.train.runs import with_train


def start(tracker: Tracker, key: str) -> str:
    return tracker.start(key, name="run", params={}, tags={})


def test_a_run_gets_what_it_lacks_of_the_history(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a server nothing is raised; a later delivery takes each metric once."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    tracked = TrackedTraining(f"http://127.0.0.1:{free_port()}", "unknown")
    for step in range(3):
        tracked.metrics(step, {"loss/total": float(step)})
    tracked.close()
    run_id = start(tracker, "waiting")
    tracker.client.log_metric(run_id, "loss/total", 1.0, step=1)
    history = [{"step": step, "loss/total": float(step)} for step in range(3)] + [
        {"step": 2, "validation/mean": 0.5}
    ]
    for _ in range(2):
        complete_metrics(tracker.client, run_id, history)
        loss_metrics = tracker.client.get_metric_history(run_id, "loss/total")
        assert sorted((metric.step, metric.value) for metric in loss_metrics) == [
            (0, 0.0),
            (1, 1.0),
            (2, 2.0),
        ]

    assert len(tracker.client.get_metric_history(run_id, "validation/mean")) == 1


def tracked_by(project: Project, address: str, **train: int) -> Project:
    config = with_train(project, **train)
    tracking = config.tracking.model_copy(update={"uri": address})
    return replace(project, config=config.model_copy(update={"tracking": tracking}))


@pytest.mark.slow
def test_training_outlives_its_mlflow_server(small_project: Project, tmp_path: Path) -> None:
    """A server that is killed in mid-training and comes back: training goes on, and the run has all
    metrics in the end."""
    port = free_port()
    project = tracked_by(
        small_project, f"http://127.0.0.1:{port}", steps=600, validate_every_steps=600
    )
    with mlflow_server(tmp_path, port):
        training = prepare_training(project, "server-killed", tags={})
        process = subprocess.Popen(
            training_command(project, training), env=os.environ | training_environment(project)
        )
        while not read_history_so_far(training.folder):
            assert process.poll() is None
            time.sleep(0.1)

    tracked = len(read_history_so_far(training.folder))
    while len(read_history_so_far(training.folder)) < tracked + 2:
        assert process.poll() is None, "training ended before metrics were kept"
        time.sleep(0.1)

    with mlflow_server(tmp_path, port) as address:
        assert process.wait() == 0
        finish_training(project, training)
        tracker = Tracker(address, project.config.tracking.registered_model)
        loss_metrics = tracker.client.get_metric_history(training.mlflow_run_id, "loss/total")
        logged = [line["step"] for line in read_history(training.folder) if "loss/total" in line]
        assert sorted({metric.step for metric in loss_metrics}) == logged
        assert len(logged) == 100
        with (
            pytest.MonkeyPatch.context() as grown
        ):  # what is repeated has read its own shards alone
            grown.setattr("hapvr.steps.training.training_shards", lambda _: ["another"])
            assert (
                prepare_training(project, training.key, tags={}).mlflow_run_id
                == training.mlflow_run_id
            )
