"""`make ui`: Dagster's UI, an MLflow server and the search service over one configuration's data,
on 127.0.0.1.

python -m pipelines.ui [--dagster-port 3000] [--mlflow-port 5000] [--search-port 8000] [--host
ADDRESS --allow-remote]

The servers have no authentication, and whoever reaches them can start runs and change the registry.
So an address that others reach is refused unless both --host and --allow-remote ask for it; put a
proxy with a login in front.
"""

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, NoReturn

import psutil
import yaml
from filelock import FileLock, Timeout

from hapvr.errors import ArgumentError, HapvrError
from pipelines.resources import CHECKOUT, config_path, open_project

if TYPE_CHECKING:
    from hapvr.steps.project import Project

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 300.0
END_TIMEOUT_S = 2.0
# The page of all assets, with all groups open: Dagster shows them closed.
GROUPS = ("ingest", "features", "training", "evaluation", "registry", "search")
LINEAGE = "/asset-groups?expanded=" + ",".join(f"global@global:{group}" for group in GROUPS)


class ServerError(Exception):
    """A server did not start; the message is for people."""


class Start:
    """Starts servers in the checkout, each in a session of its own, so that Ctrl-C reaches only
    this process."""

    def __init__(self, folder: Path, log: IO[bytes] | None) -> None:
        """folder: for files that are needed while they run. log: receives their output; None: it is
        shown."""
        self.folder = folder
        self.log = log
        self.processes: list[subprocess.Popen[bytes]] = []
        self.commands: list[str] = []
        """Of the processes, as they could be typed."""

    def __call__(self, *command: str | Path) -> None:
        """Start a server. Raises ServerError if another one has ended."""
        self.check()
        process = subprocess.Popen(
            command, cwd=CHECKOUT, stdout=self.log, stderr=self.log, start_new_session=True
        )
        self.processes.append(process)
        self.commands.append(shlex.join(map(str, command)))

    def check(self) -> None:
        """Raise ServerError if a server has ended."""
        for command, process in zip(self.commands, self.processes, strict=True):
            if process.poll() is not None:
                raise ServerError(f"`{command}` ended with exit code {process.returncode}")

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until a server answers. Raises ServerError if one has ended, or after
        START_TIMEOUT_S."""
        end = time.monotonic() + START_TIMEOUT_S
        while not ready():
            self.check()
            if time.monotonic() > end:
                raise ServerError(f"{what} did not answer within {START_TIMEOUT_S:.0f} s")
            time.sleep(0.5)


@contextmanager
def servers(log: IO[bytes] | None = None) -> Iterator[Start]:
    """Servers that end with the context, along with everything that they have started: first they
    are asked to end, and after END_TIMEOUT_S they are killed."""
    with TemporaryDirectory(prefix="hapvr-") as folder:
        start = Start(Path(folder), log)
        try:
            yield start
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            groups = {child.pid for child in start.processes}
            # An interrupt may have come just after a process began, before it was recorded.
            groups |= {child.pid for child in psutil.Process().children()}
            _send(groups, signal.SIGTERM)
            end = time.monotonic() + END_TIMEOUT_S
            while time.monotonic() < end and _send(groups, 0):
                time.sleep(0.05)
                for process in start.processes:
                    process.poll()

            _send(groups, signal.SIGKILL)
            for process in start.processes:
                process.wait()


def _send(groups: Iterable[int], number: int) -> bool:
    """Send a signal to process groups. Whether one of them is still there."""
    there = False
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, number)
            there = True

    return there


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def only_server(home: Path) -> FileLock:
    """A lock held by the only server and daemon of an instance, since two daemons would launch a
    run twice. Raises filelock.Timeout."""
    home.mkdir(parents=True, exist_ok=True)
    return FileLock(home / "server.lock", timeout=0)


def start_dagster(start: Start, *, host: str, port: int, can_reload: bool = True) -> None:
    """Start Dagster's web server, behind the guard, and its daemon, and wait until the web server
    answers.

    can_reload: see `start_code_server`, which both use.
    """
    workspace = start_code_server(start, can_reload=can_reload)
    options = ["--host", host, "--port", str(port), "--workspace", str(workspace)]
    start(sys.executable, "-m", "pipelines.webserver", *options)
    programs = Path(sys.executable).parent
    start(programs / "dagster-daemon", "run", "--workspace", workspace)
    start.wait(lambda: _answers(f"{_local_page(host, port)}/server_info"), "Dagster's web server")


def start_code_server(start: Start, *, can_reload: bool) -> Path:
    """Start a server of this project's code and wait until it accepts connections. Returns the
    workspace file of programs that use it; otherwise each would start its own, and the daemon one
    every minute.

    can_reload: whether the code can be loaded again from the UI. That takes a second process, which
    replaces the one that has loaded it.
    """
    committed = (CHECKOUT / "workspace.yaml").read_text(encoding="utf-8")
    (entry,) = yaml.safe_load(committed)["load_from"]
    code = entry["python_file"]
    address = start.folder / "code.sock"
    workspace = start.folder / "workspace.yaml"
    served = {"grpc_server": {"socket": str(address), "location_name": code["location_name"]}}
    workspace.write_text(yaml.safe_dump({"load_from": [served]}), encoding="utf-8")

    options: list[str | Path] = ["--python-file", code["relative_path"]]
    options += ["--attribute", code["attribute"], "--socket", address]
    options += ["--working-directory", code["working_directory"]]
    options += ["--location-name", code["location_name"]]
    dagster = Path(sys.executable).parent / "dagster"
    if can_reload:
        # The process that it starts for the code takes its runs along when it ends; by default it
        # ends after half a minute in which a busy machine gave its parent no time.
        start(dagster, "code-server", "start", *options, "--heartbeat-ttl", "300")
    else:
        start(dagster, "api", "grpc", *options)

    start.wait(lambda: _accepts(address), "the code server")
    return workspace


def _local_page(host: str, port: int) -> str:
    """The address at which this machine reaches a server that listens on `host`."""
    return f"http://{LOOPBACK if host in ('0.0.0.0', '::') else host}:{port}"


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=10):
        return True
    return False


def _accepts(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(address)) == 0


def main() -> int:
    """Runs until it is interrupted or one of the servers ends. 1: a server ended. 2: the address or
    the configuration is refused, or the instance is in use."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dagster-port", type=int, default=3000)
    parser.add_argument("--mlflow-port", type=int, default=5000)
    parser.add_argument("--search-port", type=int, default=8000)
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument(
        "--allow-remote", action="store_true", help="really listen on an address that others reach"
    )
    options = parser.parse_args()
    from hapvr.serving.guard import is_loopback

    host = options.host
    if not is_loopback(host) and not options.allow_remote:
        parser.error(
            f"--host {host}: others could reach this address, and no server has authentication; "
            f"leave it at {LOOPBACK}, or add --allow-remote"
        )

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the servers are ended below
    if options.allow_remote:
        os.environ["HAPVR_ANY_HOST"] = "1"
    home = Path(os.environ.setdefault("DAGSTER_HOME", str(CHECKOUT / "dagster_home")))
    os.environ.setdefault("HAPVR_MLFLOW_PAGE", f"http://{host}:{options.mlflow_port}")
    os.environ.setdefault("HAPVR_DAGSTER_PAGE", f"http://{host}:{options.dagster_port}")
    try:
        with only_server(home):
            _serve(options)
    except Timeout:
        parser.error(
            f"`make ui` or `make demo` is using {home}: end it first, or set DAGSTER_HOME to "
            "another folder"
        )
    except KeyboardInterrupt:
        return 0
    except (HapvrError, ServerError) as error:
        _say(str(error))
        return 2 if isinstance(error, HapvrError) else 1


def _serve(options: argparse.Namespace) -> NoReturn:
    from hapvr.registry.client import without_login

    project = open_project()
    host = options.host
    dagster = f"http://{host}:{options.dagster_port}"
    own_mlflow = f"http://{host}:{options.mlflow_port}"
    mlflow = without_login(project.config.tracking.uri or own_mlflow)
    pages = f"Dagster: {dagster}  MLflow: {mlflow}  Search: http://{host}:{options.search_port}"
    _require_free(host, "--dagster-port", options.dagster_port)
    _require_free(host, "--search-port", options.search_port)
    if not project.config.tracking.uri:
        _require_free(host, "--mlflow-port", options.mlflow_port)
    _say(f"{config_path()}: starting Dagster, MLflow and the search page")
    with servers() as start:
        if not project.config.tracking.uri:
            _start_mlflow(start, project, host=host, port=options.mlflow_port)
        _start_search(start, options)
        start_dagster(start, host=host, port=options.dagster_port)
        if not project.config.tracking.uri:
            page = f"{_local_page(host, options.mlflow_port)}/health"
            start.wait(lambda: _answers(page), "MLflow's server")

        search_page = f"{_local_page(host, options.search_port)}/health"
        start.wait(lambda: _answers(search_page), "the search service")
        _say(f"ready (Ctrl-C ends what runs here) {pages}")
        _say(f"all assets: {dagster}{LINEAGE}")
        while True:
            start.check()
            time.sleep(0.5)


def _require_free(host: str, option: str, port: int) -> None:
    """Raise ArgumentError for a port on which no server can listen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ArgumentError(
            f"{option} {port}: no server can listen there ({error.strerror}); end the program that "
            "uses it, or choose another port"
        ) from error


def _start_mlflow(start: Start, project: "Project", *, host: str, port: int) -> None:
    artifacts = project.root.local_path("mlflow/artifacts")
    artifacts.mkdir(parents=True, exist_ok=True)
    # One process is enough for one machine; MLflow would start four.
    options = ["--host", host, "--port", str(port), "--workers", "1"]
    options += ["--backend-store-uri", project.tracking_uri]
    options += ["--artifacts-destination", artifacts.as_uri()]
    start(sys.executable, "-m", "mlflow", "server", *options)


def _start_search(start: Start, options: argparse.Namespace) -> None:
    words = ["serve", "--config", config_path()]
    words += ["--host", options.host, "--port", str(options.search_port)]
    if options.allow_remote:
        words.append("--allow-remote")
    start(Path(sys.executable).parent / "hapvr", *words)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
