"""Both storages of Dagster's and MLflow's records, SQLite files and a PostgreSQL server; and the
jobs without a daemon."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from pipelines.ui import free_port
from tests.conftest import CHECKOUT
from tests.orchestration.servers import wait_for

NewDatabase = Callable[[str], str]
QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
ASSETS = (
    "video_manifest",
    "videos",
    "frames",
    "whitening",
    "features",
    "training_views",
    "pseudo_labels",
    "similarity_model",
    "benchmark_scores",
    "registered_model",
    "frame_descriptors",
    "search_index",
)
"""What the jobs make, in the order of the demo."""


def execute(
    instance: dg.DagsterInstance, job: str, shard: str | None = None, **more: Any
) -> dg.ExecuteInProcessResult:
    """Run a job in this process, as the daemon would elsewhere; the result says whether it
    failed."""
    from pipelines.definitions import defs

    return defs.resolve_job_def(job).execute_in_process(
        instance=instance, partition_key=shard, run_config=QUIET, raise_on_error=False, **more
    )


def materialize(
    instance: dg.DagsterInstance,
    *assets: str,
    shard: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> dg.ExecuteInProcessResult:
    """Make these assets in this process, as the button in the UI does elsewhere. config: of the
    assets' functions."""
    from pipelines.definitions import defs

    return defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=[dg.AssetKey(asset) for asset in assets],
        partition_key=shard,
        run_config=QUIET | (config or {}),
        raise_on_error=False,
    )


def requested(
    instance: dg.DagsterInstance, cursor: Any = None
) -> dg.EvaluateAutomationConditionsResult:
    """What the automation asks for now; in a thread, as a browser test may have left an event loop
    in this one."""
    from pipelines import automation
    from pipelines.definitions import defs

    selection = automation.missing_and_outdated.asset_selection
    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as once:
        # The daemon asks for them once an evaluation, Dagster's function for tests hundreds of
        # times.
        once.setattr(instance, "get_dynamic_partitions", cache(instance.get_dynamic_partitions))
        asked = pool.submit(
            dg.evaluate_automation_conditions,
            defs,
            instance,
            asset_selection=selection,
            cursor=cursor,
        )
        return asked.result()


@dataclass(frozen=True)
class Storage:
    """An instance file of the checkout, by its folder below dagster_home, and the variables it
    wants."""

    folder: str = "."
    environment: Mapping[str, str] = field(default_factory=dict)

    def home(self, parent: Path) -> dict[str, str]:
        """Variables of a Dagster instance whose home is a new folder in `parent`."""
        home = parent / "dagster_home"
        home.mkdir(exist_ok=True)
        shutil.copy(CHECKOUT / "dagster_home" / self.folder / "dagster.yaml", home)
        return {"DAGSTER_HOME": str(home), **self.environment}

    @contextmanager
    def instance(self, parent: Path, config: Path) -> Iterator[dg.DagsterInstance]:
        """That instance, with pipelines and assets to be imported anew for this configuration."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.home(parent).items():
                patch.setenv(name, value)
            patch.setenv("HAPVR_CONFIG", str(config))
            patch.delenv("HAPVR_VIDEOS", raising=False)
            for name in [
                name for name in sys.modules if name.split(".")[0] in ("pipelines", "assets")
            ]:
                patch.delitem(sys.modules, name)

            with dg.DagsterInstance.get() as instance:
                # It would connect to PostgreSQL for each statement.
                instance.optimize_for_webserver(
                    statement_timeout=60_000, pool_recycle=3600, max_overflow=20
                )
                yield instance


def program(name: str) -> str:
    """Path of one of PostgreSQL's programs; Debian keeps them out of PATH."""
    path = shutil.which(name) or next(
        map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), None
    )
    if path is None:
        pytest.skip(f"wants PostgreSQL's {name}: apt-get install postgresql")
    return path


@pytest.fixture(scope="session")
def new_database() -> Iterator[NewDatabase]:
    """Makes a database of that name on a server on 127.0.0.1 and returns its URL."""
    initdb = program("initdb")
    pg_ctl = program("pg_ctl")
    createdb = program("createdb")
    user = "postgres" if os.geteuid() == 0 else None  # the server refuses to be root
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="postgresql-") as folder:
        if user:
            shutil.chown(folder, user)

        def run(*command: str) -> None:
            streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
            done = subprocess.run(command, user=user, cwd=folder, check=False, **streams)
            assert done.returncode == 0, done.stderr

        def make(name: str) -> str:
            run(createdb, "--host=127.0.0.1", f"--port={port}", "--username=hapvr", name)
            return f"postgresql+psycopg2://hapvr@127.0.0.1:{port}/{name}"

        run(
            initdb,
            "--pgdata=data",
            "--username=hapvr",
            "--auth=trust",
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
        )
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={port} -c "
            "unix_socket_directories='' -c fsync=off"
        )
        run(pg_ctl, "start", "--pgdata=data", "--wait", "--log=log", f"--options={options}")
        try:
            yield make
        finally:
            run(pg_ctl, "stop", "--pgdata=data", "--mode=immediate")


@pytest.fixture(scope="module")
def postgresql(request: pytest.FixtureRequest, new_database: NewDatabase) -> Storage:
    """A team's instance, empty at the start of a module."""
    module = request.module.__name__.rpartition(".")[2]
    return Storage("team", {"HAPVR_DAGSTER_DATABASE": new_database(f"{module}_dagster")})


@pytest.fixture(scope="module")
def mlflow_server(
    request: pytest.FixtureRequest,
    new_database: NewDatabase,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """The address of an MLflow server with a PostgreSQL database: the command of compose.yaml, at
    other addresses."""
    port = free_port()
    module = request.module.__name__.rpartition(".")[2]
    here = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--allowed-hosts": f"127.0.0.1:{port}",
        "--backend-store-uri": new_database(f"{module}_mlflow"),
        "--artifacts-destination": tmp_path_factory.mktemp("artifacts").as_uri(),
    }
    compose = yaml.safe_load((CHECKOUT / "compose.yaml").read_text(encoding="utf-8"))
    program, verb, *options = compose["services"]["mlflow"]["command"]
    assert {option.partition("=")[0] for option in options} == here.keys()
    command = [
        sys.executable,
        "-m",
        program,
        verb,
        *(f"{name}={value}" for name, value in here.items()),
        "--workers=1",
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=60)
