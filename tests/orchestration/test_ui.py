"""`make ui` for real: all servers, on the loopback address only, ended together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from pipelines.ui import free_port, main, only_server
from tests.conftest import CHECKOUT, small_settings, write_settings
from tests.orchestration.conftest import Storage
from tests.orchestration.servers import environment_in, wait_for, wait_until

ASSETS_QUERY = {
    "query": "{ assetNodes { assetKey { path } } "
    "repositoriesOrError { ... on RepositoryConnection { nodes { location { name } jobs { name } } } } }"
}


@pytest.mark.slow
def test_ui_serves_the_graph_on_loopback_and_ends_its_servers(
    postgresql: Storage, mlflow_server: str, tmp_path: Path
) -> None:
    """A team's instance, as other tests serve the default one. The assets and the jobs are served; every listening address
    is 127.0.0.1; Ctrl-C leaves no process behind."""
    settings = small_settings(tmp_path, tmp_path / "data") | {"tracking": {"uri": mlflow_server}}
    config = write_settings(tmp_path / "config.yaml", settings)
    dagster_port, search_port = free_port(), free_port()
    environment = os.environ | postgresql.home(tmp_path) | {"HAPVR_CONFIG": str(config)}
    command = [sys.executable, "-m", "pipelines.ui", "--dagster-port", str(dagster_port)]
    command += ["--search-port", str(search_port)]
    says = tmp_path / "says.txt"
    with says.open("wb") as output:
        server = subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=output)
    try:
        body = json.dumps(ASSETS_QUERY).encode()
        answer = json.loads(wait_for(f"http://127.0.0.1:{dagster_port}/graphql", body=body))["data"]
        assert len(answer["assetNodes"]) == 15
        (location,) = answer["repositoriesOrError"]["nodes"]
        assert location["location"]["name"] == "hapvr"
        assert {"ingest", "extract", "retrain"} <= {job["name"] for job in location["jobs"]}
        with pytest.raises(urllib.error.HTTPError, match="403"):  # a mutation by GET, as a foreign page could send it
            urllib.request.urlopen(f"http://127.0.0.1:{dagster_port}/graphql?query=mutation{{x}}", timeout=60)
        assert json.loads(wait_for(f"http://127.0.0.1:{search_port}/health"))["status"] == "ok"
        assert "hapvr index build" in json.loads(wait_for(f"http://127.0.0.1:{search_port}/index"))["problem"]
        family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        listening = {
            connection.laddr.ip
            for process in family
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {"127.0.0.1"}
        wait_until(lambda: "all assets: " in says.read_text(encoding="utf-8"), "the last line", timeout_s=60)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=90)
        printed = says.read_text(encoding="utf-8")
    assert f"MLflow: {mlflow_server}  Search: http://127.0.0.1:{search_port}\n" in printed
    assert "ready" in printed
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_addresses_that_others_reach_are_refused(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 before anything is started; the message says how to insist."""
    monkeypatch.setattr(sys, "argv", ["ui", "--host", host])
    with pytest.raises(SystemExit, match="2"):
        main()
    said = capsys.readouterr().err
    assert "--allow-remote" in said
    assert host in said


@pytest.mark.slow
def test_mlflow_refuses_foreign_pages(mlflow_server: str) -> None:
    """Its own guard does not know GraphQL, for which a browser asks first; what needs no question is not understood."""
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    for method, headers in (("OPTIONS", asks), ("POST", {"Content-Type": "text/plain"})):
        foreign = headers | {"Origin": "http://evil.example"}
        request = urllib.request.Request(f"{mlflow_server}/graphql", b"{}", foreign, method=method)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(request, timeout=60)


@pytest.mark.parametrize("command", ["pipelines.ui", "pipelines.demo"])
def test_an_instance_has_one_server(command: str, tmp_path: Path) -> None:
    """While one serves an instance, a second one ends with exit code 2 and says what to do: two daemons start runs twice."""
    config = write_settings(tmp_path / "config.yaml", small_settings(tmp_path, tmp_path / "data"))
    environment = os.environ | {"HAPVR_CONFIG": str(config), "DAGSTER_HOME": str(tmp_path)}
    with only_server(tmp_path):
        done = subprocess.run(
            [sys.executable, "-m", command], capture_output=True, text=True, cwd=CHECKOUT, env=environment, check=False
        )
    assert done.returncode == 2
    assert "end it first" in done.stdout + done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_make_demo_and_all_that_it_started(clips_folder: Path, tmp_path: Path) -> None:
    """While runs are under way: make ends, says nothing of an error, and leaves no process."""
    environment = environment_in(tmp_path, small_settings(clips_folder, tmp_path / "data"))
    venv = Path(sys.executable).parent.parent
    command = ["make", "--assume-old", f"{venv}/.installed", f"VENV={venv}"]
    command += [f"DAGSTER_HOME={environment['DAGSTER_HOME']}", "demo"]
    says = tmp_path / "says.txt"
    with says.open("wb") as output:
        make = subprocess.Popen(
            command, cwd=CHECKOUT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    wait_until(lambda: "find_videos" in says.read_text(encoding="utf-8"), "the first job")
    family = psutil.Process(make.pid).children(recursive=True)
    os.killpg(make.pid, signal.SIGINT)
    make.wait(timeout=60)
    assert "***" not in says.read_text(encoding="utf-8")
    left = psutil.wait_procs(family, timeout=10)[1]
    assert [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []
