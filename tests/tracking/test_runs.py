"""The tracking store: a server that is not there."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mlflow.utils.mlflow_tags import MLFLOW_SOURCE_NAME, MLFLOW_USER

from hapvr.errors import DataError
from hapvr.tracking.runs import Tracker
from tests.tracking.empty_store import new_store


def test_a_server_that_does_not_answer_is_named_at_once() -> None:
    """Nobody listens on the port: the address and both remedies are said, without MLflow's minutes of retries."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(DataError, match=rf"no MLflow server answers at http://127.0.0.1:{port}.*tracking.uri"):
        Tracker(f"http://127.0.0.1:{port}", "tests")


def test_another_server_is_told_from_mlflows() -> None:
    """One that knows no /health, and one that answers with a page, as Dagster's does at every address."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(self.server.status)  # type: ignore[attr-defined]
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        for server.status in (404, 200):  # type: ignore[attr-defined]
            with pytest.raises(DataError, match=f"what answers at {address} is no MLflow server"):
                Tracker(address, "tests")
        server.shutdown()


def test_artifacts_of_a_database_lie_beside_it(tmp_path: Path) -> None:
    """Not in whatever folder the process was started in."""
    tracker = Tracker(f"sqlite:///{tmp_path}/records/mlflow.db", "tests")
    run_id = tracker.start("key", name="run", params={}, tags={})
    tracker.text(run_id, "text", "note.txt")
    assert list(tmp_path.glob("records/artifacts/**/note.txt"))


def test_a_run_says_who_made_it_and_by_which_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who starts it last is not who made it; the program is named without its folder."""
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/hapvr", "train"])
    monkeypatch.setenv("LOGNAME", "somebody")
    tracker = Tracker(f"sqlite:///{tmp_path}/mlflow.db", "tests")
    run_id = tracker.start("key", name="run", params={}, tags={})
    monkeypatch.setenv("LOGNAME", "another")
    assert tracker.start("key", name="run", params={}, tags={}) == run_id
    tags = tracker.client.get_run(run_id).data.tags
    assert (tags[MLFLOW_USER], tags[MLFLOW_SOURCE_NAME]) == ("somebody", "hapvr")


def test_runs_may_record_the_same_data_at_once(tmp_path: Path) -> None:
    """Trainings that start together name the same data; MLflow lets one of them write it first."""
    tracker = Tracker(new_store(tmp_path), "tests")
    runs = [tracker.start(f"key-{number}", name="run", params={}, tags={}) for number in range(6)]
    for data in range(4):
        together = threading.Barrier(len(runs))

        def record(run_id: str, data: int = data, together: threading.Barrier = together) -> None:
            together.wait()
            tracker.dataset(run_id, name=f"data-{data}", digest="d", place="/data", profile={}, context="training")

        with ThreadPoolExecutor(len(runs)) as pool:
            list(pool.map(record, runs))
    for run_id in runs:
        assert len(tracker.client.get_run(run_id).inputs.dataset_inputs) == 4
