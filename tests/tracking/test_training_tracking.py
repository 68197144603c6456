"""Metrics of a training on their way to MLflow, with and without a server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from hapvr.stages.project import Project
from hapvr.stages.training import (
    finish_training,
    prepare_training,
    run_training,
    training_command,
    training_environment,
)
from hapvr.tracking.runs import Tracker
from hapvr.tracking.training import LATE_TAG, PENDING_NAME, Outbox, tracked_training
from hapvr.train.report import BatchReport, read_history
from tests.tracking.empty_store import new_store
from tests.train.killed import read_history_so_far
from tests.train.runs import with_train


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[str]:
    """A real server over a SQLite file, killed with its workers at the end."""
    if not (folder / "mlflow.db").exists():
        new_store(folder)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    command += ["--artifacts-destination", str(folder / "artifacts"), "--host", "127.0.0.1", "--port", str(port)]
    quiet = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    process = subprocess.Popen(
        [*command, "--workers", "1"],
        env=quiet,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            assert process.poll() is None
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def small_report() -> BatchReport:
    labels = torch.tensor([[1, -1], [-1, 1]], dtype=torch.int8)
    return BatchReport(torch.eye(2), labels, ("a", "b"), torch.tensor([0, 0]))


def test_metrics_and_batches_reach_the_run(tmp_path: Path) -> None:
    """Metrics with their steps, heat maps and tables of batches as artifacts; nothing stays behind."""
    tracker = Tracker(new_store(tmp_path), "test", artifacts=tmp_path / "artifacts")
    run_id = tracker.start("key", name="run", params={}, tags={})
    said: list[str] = []
    with tracked_training(lambda: tracker, run_id, tmp_path, say=said.append) as tracked:
        tracked.metrics(0, {"loss/total": 2.0})
        tracked.metrics(1, {"loss/total": 1.0})
        tracked.batch(1, small_report())
    history = tracker.client.get_metric_history(run_id, "loss/total")
    assert [(metric.step, metric.value) for metric in history] == [(0, 2.0), (1, 1.0)]
    assert [file.path for file in tracker.client.list_artifacts(run_id, "batches")] == [
        "batches/hardest-negatives-00000001.csv",
        "batches/similarity-00000001.png",
    ]
    assert Outbox(tmp_path).entries() == []
    assert said == []


def test_entries_wait_on_disk_until_the_server_answers(tmp_path: Path) -> None:
    """Without a server nothing is raised; the entries and a message remain, and a later delivery takes them all."""

    def connect() -> Tracker:
        raise ConnectionError("nobody listens")

    said: list[str] = []
    with tracked_training(connect, "unknown", tmp_path, say=said.append) as tracked:
        for step in range(3):
            tracked.metrics(step, {"loss/total": float(step)})
    assert said[0] == "MLflow cannot be reached (nobody listens); training goes on and keeps its metrics"
    assert said[-1].startswith(
        f"MLflow: 3 entries of this run are not delivered; they are kept in {tmp_path / PENDING_NAME}"
    )
    tracker = Tracker(new_store(tmp_path), "test", artifacts=tmp_path / "artifacts")
    run_id = tracker.start("key", name="run", params={}, tags={})
    assert Outbox(tmp_path).deliver(tracker, run_id) == 3
    assert [metric.step for metric in tracker.client.get_metric_history(run_id, "loss/total")] == [0, 1, 2]
    assert Outbox(tmp_path).deliver(tracker, run_id) == 0


@pytest.mark.slow
def test_training_outlives_its_mlflow_server(small_project: Project, tmp_path: Path) -> None:
    """A server that is killed in mid-training and comes back: training goes on, and the run has all metrics in the end."""
    port = free_port()
    config = with_train(
        small_project, steps=1200, log_every_steps=25, validate_every_steps=1200, checkpoint_every_steps=400
    )
    tracking = config.tracking.model_copy(update={"uri": f"http://127.0.0.1:{port}"})
    project = Project(config.model_copy(update={"tracking": tracking}), small_project.root, small_project.folder)
    with mlflow_server(tmp_path, port):
        training = prepare_training(project, "server-killed", tags={})
        process = subprocess.Popen(training_command(project, training), env=os.environ | training_environment(project))
        while not read_history_so_far(training.folder):
            assert process.poll() is None
            time.sleep(0.1)
    while len(Outbox(training.folder).entries()) < 2:
        assert process.poll() is None, "training ended before entries were kept"
        time.sleep(0.1)
    with mlflow_server(tmp_path, port):
        assert process.wait() == 0
        finish_training(project, training)
        tracker = Tracker(f"http://127.0.0.1:{port}", project.config.tracking.experiment)
        found = tracker.client.get_metric_history(training.mlflow_run_id, "loss/total")
        logged = [line["step"] for line in read_history(training.folder) if "loss/total" in line]
        assert sorted({metric.step for metric in found}) == logged
        assert len(logged) == 48
        assert Outbox(training.folder).entries() == []


@pytest.mark.slow
def test_run_that_ends_without_its_server_is_finished_later(small_project: Project, tmp_path: Path) -> None:
    """Training ends well while the server is away; finishing it when the server is back delivers what was kept."""
    port = free_port()
    tracking = small_project.config.tracking.model_copy(update={"uri": f"http://127.0.0.1:{port}"})
    config = small_project.config.model_copy(update={"tracking": tracking})
    project = Project(config, small_project.root, small_project.folder)
    with mlflow_server(tmp_path, port):
        training = prepare_training(project, "server-away", tags={})
    run_training(project, training)
    assert Outbox(training.folder).entries()
    with mlflow_server(tmp_path, port):
        assert finish_training(project, training)["steps"] == 8
        tracker = Tracker(f"http://127.0.0.1:{port}", project.config.tracking.experiment)
        found = tracker.client.get_metric_history(training.mlflow_run_id, "loss/total")
        assert sorted({metric.step for metric in found}) == [1, 3, 5, 7]
        assert LATE_TAG in tracker.client.get_run(training.mlflow_run_id).data.tags
