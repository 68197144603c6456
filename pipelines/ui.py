"""`make ui`: Dagster's UI, an MLflow server and the search service over one configuration's data, on 127.0.0.1.

python -m pipelines.ui [--dagster-port 3000] [--mlflow-port 5000] [--search-port 8000] [--host ADDRESS --allow-remote]

No server asks who is there: whoever reaches them can start runs, change the registry and watch the videos. So another
address than a loopback one is refused unless it is asked for twice, by --host and --allow-remote; put a proxy with a login
before it.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from filelock import FileLock, Timeout

from hapvr.serving.guard import is_loopback
from hapvr.stages.project import Project
from hapvr.tracking.client import model_page, runs_page
from pipelines.resources import CHECKOUT, project_resource

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 300.0
# The page of all assets, with all groups open: Dagster shows them closed.
GROUPS = ("ingest", "features", "training", "evaluation", "registry", "search")
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


def mlflow_command(project: Project, *, host: str, port: int) -> list[str]:
    """An MLflow server over the project's own database and artifacts."""
    artifacts = project.root.local_path("mlflow/artifacts")
    artifacts.mkdir(parents=True, exist_ok=True)
    # One process is enough for one machine; MLflow would start four.
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    return [*command, "--backend-store-uri", project.tracking_uri, "--artifacts-destination", artifacts.as_uri()]


def mlflow_pages(project: Project, base: str) -> list[str]:
    """Where a server shows the trainings and the versions; nothing before the first training."""
    tracking = project.config.tracking
    wanted = urllib.parse.urlencode({"experiment_name": tracking.experiment})
    address = f"{base.rstrip('/')}/api/2.0/mlflow/experiments/get-by-name?{wanted}"
    with suppress(OSError, ValueError, KeyError), urllib.request.urlopen(address, timeout=10) as answer:
        experiment = json.load(answer)["experiment"]["experiment_id"]
        versions = model_page(base, tracking.registered_model)
        return [f"trainings: {runs_page(base, experiment)}", f"versions: {versions}"]
    return []


def search_command(config: str, *, host: str, port: int) -> list[str]:
    """The search service over a configuration's data; it waits for an index if there is none yet."""
    command = [str(Path(sys.executable).parent / "hapvr"), "serve", "--config", config]
    command += ["--host", host, "--port", str(port)]
    return command if is_loopback(host) else [*command, "--allow-remote"]


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
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:  # a search may still be decoding a video
                process.kill()
                process.wait()
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def dagster_running(*, host: str, port: int, **options: Any) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Dagster's web server, behind the guard, and its daemon, once the web server answers. options: of subprocess.Popen.

    Both ask one server of this project's code, as they would start one each otherwise, and the daemon one every minute.
    Raises ServerError if one of them does not start.
    """
    (code,) = yaml.safe_load((CHECKOUT / "workspace.yaml").read_text(encoding="utf-8"))["load_from"]
    code = code["python_file"]
    programs = Path(sys.executable).parent
    with TemporaryDirectory(prefix="hapvr-") as folder:
        address, workspace = Path(folder, "code.sock"), Path(folder, "workspace.yaml")
        entry = {"grpc_server": {"socket": str(address), "location_name": code["location_name"]}}
        workspace.write_text(yaml.safe_dump({"load_from": [entry]}), encoding="utf-8")
        code_server = [str(programs / "dagster"), "code-server", "start", "--socket", str(address)]
        code_server += ["--python-file", code["relative_path"], "--attribute", code["attribute"]]
        code_server += ["--working-directory", code["working_directory"], "--location-name", code["location_name"]]
        # The process that it starts for the code takes runs along when it ends; by default it does so after half a minute
        # in which a busy machine gave its parent no time.
        code_server += ["--heartbeat-ttl", "300"]
        web_server = [sys.executable, "-m", "pipelines.webserver", "--host", host, "--port", str(port)]
        web_server += ["--workspace", str(workspace)]
        daemon = [str(programs / "dagster-daemon"), "run", "--workspace", str(workspace)]
        with running([code_server], **options) as first:
            _wait(lambda: _accepts(address), "the code server", first)
            with running([web_server, daemon], **options) as others:
                wait_for_answer(f"{local_page(host, port)}/server_info", [*first, *others])
                yield [*first, *others]


def wait_for_answer(url: str, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until a server answers. Raises ServerError if a process ends before, or after START_TIMEOUT_S."""
    _wait(lambda: _answers(url), url, processes)


def local_page(host: str, port: int) -> str:
    """The address at which this machine reaches a server that listens on `host`."""
    return f"http://{LOOPBACK if host in ('0.0.0.0', '::') else host}:{port}"


def _wait(ready: Callable[[], bool], what: str, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while not ready():
        for process in processes:
            if process.poll() is not None:
                raise ServerError(f"{process.args!r} ended with exit code {process.returncode}")
        if time.monotonic() > end:
            raise ServerError(f"{what} did not answer within {START_TIMEOUT_S:.0f} s")
        time.sleep(0.5)


def _answers(url: str) -> bool:
    with suppress(urllib.error.URLError, ConnectionError, TimeoutError), urllib.request.urlopen(url, timeout=10):
        return True
    return False


def _accepts(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(address)) == 0


def main() -> int:
    """Runs until it is interrupted or one of the servers ends. 1: a server ended. 2: the address is refused, or the instance is in use."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dagster-port", type=int, default=3000)
    parser.add_argument("--mlflow-port", type=int, default=5000)
    parser.add_argument("--search-port", type=int, help="default: service.port of the configuration")
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--allow-remote", action="store_true", help="really listen on an address that others reach")
    options = parser.parse_args()
    host = options.host
    if not is_loopback(host) and not options.allow_remote:
        parser.error(
            f"--host {host}: others could reach this address, and no server asks who is there; "
            f"leave it at {LOOPBACK}, or add --allow-remote"
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the servers are ended below
    if options.allow_remote:
        os.environ["HAPVR_ANY_HOST"] = "1"
    home = Path(os.environ.setdefault("DAGSTER_HOME", str(CHECKOUT / "dagster_home")))
    os.environ.setdefault("HAPVR_MLFLOW_PAGE", f"http://{host}:{options.mlflow_port}")
    os.environ.setdefault("HAPVR_DAGSTER_PAGE", f"http://{host}:{options.dagster_port}")
    resource = project_resource()
    project = resource.open()
    search_port = project.config.service.port if options.search_port is None else options.search_port
    search = search_command(resource.config_path, host=host, port=search_port)
    try:
        with only_server(home):
            return _serve(
                project,
                search,
                host=host,
                dagster_port=options.dagster_port,
                mlflow_port=options.mlflow_port,
                search_port=search_port,
            )
    except Timeout:
        parser.error(f"`make ui` or `make demo` is using {home}: end it first, or set DAGSTER_HOME to another folder")


def _serve(
    project: Project, search: Sequence[str], *, host: str, dagster_port: int, mlflow_port: int, search_port: int
) -> int:
    dagster, mlflow = f"http://{host}:{dagster_port}", f"http://{host}:{mlflow_port}"
    commands = [] if project.config.tracking.uri else [mlflow_command(project, host=host, port=mlflow_port)]
    pages = f"Dagster: {dagster}  MLflow: {project.config.tracking.uri or mlflow}  Search: http://{host}:{search_port}"
    _say(f"starting {pages}")
    try:
        quiet = running([search], stdout=subprocess.DEVNULL)  # its address stands in the line below
        with running(commands) as first, quiet as second, dagster_running(host=host, port=dagster_port) as others:
            if commands:
                wait_for_answer(f"{local_page(host, mlflow_port)}/health", first)
            wait_for_answer(f"{local_page(host, search_port)}/health", second)
            _say(f"ready (Ctrl-C ends what runs here) {pages}")
            _say(f"all assets: {dagster}{LINEAGE}")
            for line in mlflow_pages(project, project.config.tracking.uri or mlflow):
                _say(line)
            while all(server.poll() is None for server in (*first, *second, *others)):
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
