"""`make ui` for real: both servers, on the loopback address only, ended together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import CHECKOUT, small_settings, write_settings
from tests.orchestration.conftest import Storage
from tests.orchestration.servers import free_port, wait_for

ASSETS_QUERY = {
    "query": "{ assetNodes { assetKey { path } } "
    "repositoriesOrError { ... on RepositoryConnection { nodes { location { name } jobs { name } } } } }"
}


@pytest.mark.slow
def test_ui_serves_the_graph_on_loopback_and_ends_its_servers(
    storage: Storage, tracking: dict[str, str], tmp_path: Path
) -> None:
    """The ten assets and both jobs are served; every listening address is 127.0.0.1; SIGTERM leaves no process behind."""
    settings = small_settings(tmp_path, tmp_path / "data") | {"tracking": tracking}
    config = write_settings(tmp_path / "config.yaml", settings)
    dagster_port, mlflow_port = free_port(), free_port()
    environment = os.environ | storage.home(tmp_path) | {"HAPVR_CONFIG": str(config)}
    arguments = ["--dagster-port", str(dagster_port), "--mlflow-port", str(mlflow_port)]
    command = [sys.executable, "-m", "pipelines.ui", *arguments]
    server = subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True)
    mlflow = tracking.get("uri", f"http://127.0.0.1:{mlflow_port}")
    try:
        assert wait_for(f"{mlflow}/health") == b"OK"
        body = json.dumps(ASSETS_QUERY).encode()
        answer = json.loads(wait_for(f"http://127.0.0.1:{dagster_port}/graphql", body=body))["data"]
        assert len(answer["assetNodes"]) == 10
        (location,) = answer["repositoriesOrError"]["nodes"]
        assert location["location"]["name"] == "hapvr"
        assert {"demo", "retrain"} <= {job["name"] for job in location["jobs"]}
        family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        listening = {
            connection.laddr.ip
            for process in family
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {"127.0.0.1"}
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=90)
        assert server.stdout is not None
        printed = server.stdout.read()
    assert f"MLflow: {mlflow} " in printed
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_addresses_that_others_reach_are_refused(host: str) -> None:
    """Exit 2 before anything is started; the message says how to insist."""
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.ui", "--host", host],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        check=False,
    )
    assert done.returncode == 2
    assert "--allow-remote" in done.stderr
    assert host in done.stderr


def test_loopback_addresses_are_known() -> None:
    """IPv4, IPv6 and the name."""
    from pipelines.ui import is_loopback

    assert all(is_loopback(host) for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"))
