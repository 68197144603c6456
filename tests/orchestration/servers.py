"""Servers that tests start on this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hapvr.steps.project import Project
from pipelines.ui import free_port
from tests.conftest import CHECKOUT, small_settings, write_settings


def wait_for(url: str, *, body: bytes | None = None, timeout_s: float = 300) -> bytes:
    """The answer of a server that is starting."""
    end = time.monotonic() + timeout_s
    while True:
        request = urllib.request.Request(
            url, data=body, headers={"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return bytes(answer.read())
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > end:
                raise
            time.sleep(1)


def wait_until(condition: Any, what: str, *, timeout_s: float = 900) -> Any:
    """The first true value of a condition."""
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(1)


@dataclass(frozen=True)
class Servers:
    """Addresses of Dagster, MLflow and the search service, the project that they show, the folder
    of its configuration and instance, and the process that started them."""

    dagster: str
    mlflow: str
    search: str
    project: Project
    folder: Path
    process: psutil.Process

    def graphql(self, query: str, **variables: Any) -> Any:
        """Data of a GraphQL answer."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        return json.loads(wait_for(f"{self.dagster}/graphql", body=body))["data"]


PACKAGED = {"architecture": "tf_efficientnet_lite0", "weights": {"source": "packaged"}}


def packaged_settings(videos: Path, data_root: Path) -> dict[str, Any]:
    """`small_settings` with networks that `make setup` installs, as those of `make demo`, and with
    one shard of each split: most runs then do without torch, whose import takes longer than all
    that such a run computes."""
    networks = {"backbone": PACKAGED | {"crop_px": 128}, "teacher": PACKAGED}
    return small_settings(videos, data_root) | networks | {"shard_videos": 50}


def environment_in(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Variables of a configuration with these settings and an instance, both in `folder`."""
    config = write_settings(folder / "config.yaml", dict(settings))
    home = folder / "dagster_home"
    home.mkdir(exist_ok=True)
    shutil.copy(CHECKOUT / "dagster_home" / "dagster.yaml", home)
    return os.environ | {"HAPVR_CONFIG": str(config), "DAGSTER_HOME": str(home)}


@contextmanager
def serving(folder: Path, settings: Mapping[str, Any]) -> Iterator[Servers]:
    """`make ui` with these settings and an instance in `folder`: all servers and the daemon, once
    they answer. Ctrl-C ends them all."""
    environment = environment_in(folder, settings)
    config = Path(environment["HAPVR_CONFIG"])
    dagster_port = free_port()
    mlflow_port = free_port()
    search_port = free_port()
    arguments = ["--dagster-port", str(dagster_port), "--mlflow-port", str(mlflow_port)]
    arguments += ["--search-port", str(search_port)]
    with (folder / "ui.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipelines.ui", *arguments],
            cwd=CHECKOUT,
            env=environment,
            stdout=log,
            stderr=log,
        )
        try:
            addresses = (
                f"http://127.0.0.1:{port}" for port in (dagster_port, mlflow_port, search_port)
            )
            servers = Servers(*addresses, Project.open(config), folder, psutil.Process(process.pid))
            wait_for(f"{servers.mlflow}/health", timeout_s=300)
            wait_for(f"{servers.dagster}/server_info", timeout_s=300)
            wait_for(f"{servers.search}/health", timeout_s=300)
            wait_until(
                lambda: servers.graphql("{ assetNodes { id } }")["assetNodes"],
                "the code location",
                timeout_s=300,
            )
            yield servers
        finally:
            family = (
                psutil.Process(process.pid).children(recursive=True)
                if process.poll() is None
                else []
            )
            process.send_signal(signal.SIGINT)
            process.wait(timeout=120)
            assert psutil.wait_procs(family, timeout=60)[1] == []
