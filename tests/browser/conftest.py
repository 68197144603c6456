"""The UI as people use it: `pipelines.ui` over a project of its own, and a headless Chromium."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from hapvr.stages.project import Project
from tests.conftest import CHECKOUT, small_settings, write_settings
from tests.orchestration.servers import free_port, wait_for

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
expect.set_options(timeout=120_000)
SCREENSHOTS = CHECKOUT / "test-artifacts" / "browser"


@dataclass(frozen=True)
class Servers:
    """Addresses of both servers, and the project that they show."""

    dagster: str
    mlflow: str
    project: Project

    def graphql(self, query: str, **variables: Any) -> Any:
        """Data of a GraphQL answer."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        return json.loads(wait_for(f"{self.dagster}/graphql", body=body))["data"]


@pytest.fixture(scope="session")
def servers(clips_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Both servers and the daemon; nothing has been run yet."""
    folder = tmp_path_factory.mktemp("ui")
    settings = small_settings(clips_folder, folder / "data")
    settings["shard_videos"] = 50
    settings["automation"] = {"retry_wait_s": 1}
    config = write_settings(folder / "config.yaml", settings)
    home = folder / "dagster_home"
    home.mkdir()
    shutil.copy(CHECKOUT / "dagster_home" / "dagster.yaml", home)
    dagster_port, mlflow_port = free_port(), free_port()
    environment = os.environ | {"HAPVR_CONFIG": str(config), "DAGSTER_HOME": str(home)}
    arguments = ["--dagster-port", str(dagster_port), "--mlflow-port", str(mlflow_port)]
    with (folder / "ui.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipelines.ui", *arguments], cwd=CHECKOUT, env=environment, stdout=log, stderr=log
        )
        try:
            found = Servers(f"http://127.0.0.1:{dagster_port}", f"http://127.0.0.1:{mlflow_port}", Project.open(config))
            wait_for(f"{found.mlflow}/health", timeout_s=300)
            wait_for(f"{found.dagster}/server_info", timeout_s=300)
            wait_until(lambda: found.graphql("{ assetNodes { id } }")["assetNodes"], "the code location", timeout_s=300)
            yield found
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of a fresh browser."""
    if CHROMIUM is None:
        pytest.fail("no chromium on this machine; install the distribution's package `chromium`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.set_default_timeout(120_000)
        yield page
        browser.close()


def screenshot(page: Page, name: str) -> None:
    """Keep what the page shows under test-artifacts/browser."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


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
