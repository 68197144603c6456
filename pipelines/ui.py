"""`make ui`: Dagster's UI and an MLflow server over one configuration's data, on 127.0.0.1.

python -m pipelines.ui [--dagster-port 3000] [--mlflow-port 5000] [--host ADDRESS --allow-remote]

Neither server asks who is there: whoever reaches them can start runs and change the registry. So another address than a
loopback one is refused unless it is asked for twice, by --host and --allow-remote; put a proxy with a login before it.
"""

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hapvr.stages.project import Project
from pipelines.guard import is_loopback
from pipelines.resources import CHECKOUT, project_resource

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 300.0
# The page of all assets, with all groups open: Dagster shows them closed.
GROUPS = ("ingest", "features", "training", "evaluation", "registry")
LINEAGE = "/asset-groups?expanded=" + ",".join(f"global@global:{group}" for group in GROUPS)
# No telemetry, and none of MLflow's job workers: nothing here uses them, and they are ten processes.
QUIET = {
    "DAGSTER_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}


class ServerError(Exception):
    """A server did not start; the message is for people."""


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def only_server(home: Path) -> FileLock:
    """A lock that one server and daemon of an instance holds; two daemons would launch a run twice. Raises filelock.Timeout."""
    home.mkdir(parents=True, exist_ok=True)
    return FileLock(home / "server.lock", timeout=0)


def dagster_commands(*, host: str, port: int) -> list[list[str]]:
    """Dagster's web server, behind the guard, and its daemon."""
    workspace = ["--workspace", "workspace.yaml"]
    daemon = str(Path(sys.executable).parent / "dagster-daemon")
    return [
        [sys.executable, "-m", "pipelines.webserver", *workspace, "--host", host, "--port", str(port)],
        [daemon, "run", *workspace],
    ]


def mlflow_command(project: Project, *, host: str, port: int) -> list[str]:
    """An MLflow server over the project's own database and artifacts."""
    artifacts = project.root.local_path("mlflow/artifacts")
    artifacts.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port)]
    return [*command, "--backend-store-uri", project.tracking_uri, "--artifacts-destination", artifacts.as_uri()]


@contextmanager
def running(commands: Sequence[Sequence[str]], **options: Any) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes in the checkout, ended with the context. options: of subprocess.Popen."""
    processes = [subprocess.Popen(command, cwd=CHECKOUT, env=QUIET | os.environ, **options) for command in commands]
    try:
        yield processes
    finally:
        # A second signal must not stop this half way: who presses Ctrl-C also sends it to the processes.
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=60)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def wait_for_answer(url: str, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until a server answers. Raises ServerError if a process ends before, or after START_TIMEOUT_S."""
    end = time.monotonic() + START_TIMEOUT_S
    while True:
        with suppress(urllib.error.URLError, ConnectionError, TimeoutError), urllib.request.urlopen(url, timeout=10):
            return
        for process in processes:
            if process.poll() is not None:
                raise ServerError(f"{shlex.join(map(str, process.args))} ended with exit code {process.returncode}")  # type: ignore[arg-type]
        if time.monotonic() > end:
            raise ServerError(f"{url} did not answer within {START_TIMEOUT_S:.0f} s")
        time.sleep(0.5)


def main() -> int:
    """Runs until it is interrupted or one of the servers ends. 1: a server ended. 2: the address is refused, or the instance is in use."""
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the servers are ended below
    if options.allow_remote:
        os.environ["HAPVR_ANY_HOST"] = "1"
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
    pages = {"Dagster": f"http://{host}:{dagster_port}", "MLflow": f"http://{host}:{mlflow_port}"}
    commands = dagster_commands(host=host, port=dagster_port)
    answers = [f"{pages['Dagster']}/server_info"]
    if project.config.tracking.uri:
        pages["MLflow"] = project.config.tracking.uri
    else:
        commands.append(mlflow_command(project, host=host, port=mlflow_port))
        answers.append(f"{pages['MLflow']}/health")
    _say("starting: " + "  ".join(f"{name}: {page}" for name, page in pages.items()))
    with running(commands) as servers:
        try:
            for answer in answers:
                wait_for_answer(answer.replace("//0.0.0.0:", f"//{LOOPBACK}:"), servers)
            _say("ready (Ctrl-C ends what runs here): " + "  ".join(f"{name}: {page}" for name, page in pages.items()))
            _say(f"all assets: {pages['Dagster']}{LINEAGE}")
            while all(server.poll() is None for server in servers):
                time.sleep(0.5)
        except KeyboardInterrupt:
            return 0
        except ServerError as error:
            _say(str(error))
    return 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
