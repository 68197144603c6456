"""`make ui`: Dagster's UI and an MLflow server over one configuration's data, on 127.0.0.1.

python -m pipelines.ui [--dagster-port 3000] [--mlflow-port 5000] [--host ADDRESS --allow-remote]

Neither server asks who is there: whoever reaches them can start runs and change the registry. So another address than a
loopback one is refused unless it is asked for twice, by --host and --allow-remote; put a proxy with a login before it.
"""

import argparse
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from hapvr.stages.project import Project
from pipelines.resources import CHECKOUT, project_resource

LOOPBACK = "127.0.0.1"
# No telemetry, and none of MLflow's job workers: nothing here uses them, and they are ten processes.
QUIET = {
    "DAGSTER_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def only_server(home: Path) -> FileLock:
    """A lock that one server and daemon of an instance holds; two daemons would launch a run twice. Raises filelock.Timeout."""
    home.mkdir(parents=True, exist_ok=True)
    return FileLock(home / "server.lock", timeout=0)


def dagster_command(*, host: str, port: int) -> list[str]:
    """Dagster's UI with its daemon."""
    command = [sys.executable, "-m", "dagster", "dev", "--workspace", "workspace.yaml"]
    return [*command, "--host", host, "--port", str(port)]


def commands(project: Project, *, host: str, dagster_port: int, mlflow_port: int) -> list[list[str]]:
    """MLflow, unless the configuration names a server; then Dagster's UI with its daemon."""
    dagster = dagster_command(host=host, port=dagster_port)
    if project.config.tracking.uri:
        return [dagster]
    artifacts = project.root.local_path("mlflow/artifacts")
    artifacts.mkdir(parents=True, exist_ok=True)
    mlflow = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(mlflow_port)]
    mlflow += ["--backend-store-uri", project.tracking_uri, "--artifacts-destination", artifacts.as_uri()]
    return [mlflow, dagster]


def main() -> int:
    """Runs until it is interrupted or one of the servers ends. 2: the address is refused, or the instance is in use."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dagster-port", type=int, default=3000)
    parser.add_argument("--mlflow-port", type=int, default=5000)
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--allow-remote", action="store_true", help="really listen on an address that others reach")
    options = parser.parse_args()
    host = options.host
    if not is_loopback(host) and not options.allow_remote:
        parser.error(
            f"--host {host}: others could reach this address, and neither server asks who is there; "
            f"leave it at {LOOPBACK}, or add --allow-remote"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the servers are ended below
    home = Path(os.environ.setdefault("DAGSTER_HOME", str(CHECKOUT / "dagster_home")))
    os.environ.setdefault("HAPVR_MLFLOW_PAGE", f"http://{host}:{options.mlflow_port}")
    os.environ.setdefault("HAPVR_DAGSTER_PAGE", f"http://{host}:{options.dagster_port}")
    project = project_resource().open()
    try:
        with only_server(home):
            return _serve(project, host=host, dagster_port=options.dagster_port, mlflow_port=options.mlflow_port)
    except Timeout:
        parser.error(f"`make ui` or `make demo` is using {home}: end it first, or set DAGSTER_HOME to another folder")


def _serve(project: Project, *, host: str, dagster_port: int, mlflow_port: int) -> int:
    servers = [
        subprocess.Popen(command, cwd=CHECKOUT, env=QUIET | os.environ)
        for command in commands(project, host=host, dagster_port=dagster_port, mlflow_port=mlflow_port)
    ]
    sys.stdout.write(
        f"Dagster: http://{host}:{dagster_port}  "
        f"MLflow: {project.config.tracking.uri or f'http://{host}:{mlflow_port}'}  (Ctrl-C ends what runs here)\n"
    )
    sys.stdout.flush()
    try:
        return _wait(servers)
    except KeyboardInterrupt:
        return 0
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(timeout=60)


def _wait(servers: Sequence[subprocess.Popen[bytes]]) -> int:
    while True:
        for server in servers:
            code = server.poll()
            if code is not None:
                return code
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
