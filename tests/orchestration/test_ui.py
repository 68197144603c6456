"""`make ui` for real: both servers, on the loopback address only, ended together."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.conftest import CHECKOUT, small_settings, write_settings

ASSETS_QUERY = {
    "query": "{ assetNodes { assetKey { path } } "
    "repositoriesOrError { ... on RepositoryConnection { nodes { location { name } jobs { name } } } } }"
}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(url: str, *, body: bytes | None = None, timeout_s: float = 120) -> bytes:
    """The answer of a server that is starting."""
    end = time.monotonic() + timeout_s
    while True:
        request = urllib.request.Request(url, data=body, headers={"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return bytes(answer.read())
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > end:
                raise
            time.sleep(1)


@pytest.mark.slow
def test_ui_serves_the_graph_on_loopback_and_ends_its_servers(tmp_path: Path) -> None:
    """The ten assets and both jobs are served; every listening address is 127.0.0.1; SIGTERM leaves no process behind."""
    config = write_settings(tmp_path / "config.yaml", small_settings(tmp_path, tmp_path / "data"))
    home = tmp_path / "dagster_home"
    home.mkdir()
    shutil.copy(CHECKOUT / "dagster_home" / "dagster.yaml", home)
    dagster_port, mlflow_port = free_port(), free_port()
    environment = os.environ | {"HAPVR_CONFIG": str(config), "DAGSTER_HOME": str(home)}
    arguments = ["--dagster-port", str(dagster_port), "--mlflow-port", str(mlflow_port)]
    server = subprocess.Popen([sys.executable, "-m", "pipelines.ui", *arguments], cwd=CHECKOUT, env=environment)
    try:
        assert wait_for(f"http://127.0.0.1:{mlflow_port}/health") == b"OK"
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
