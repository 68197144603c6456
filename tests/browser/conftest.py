"""The UI as people use it: `make demo`, then `make ui` over what it made, and a headless Chromium."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from pipelines.ui import free_port
from tests.conftest import CHECKOUT, small_settings
from tests.orchestration.servers import Servers, environment_in, serving

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


@pytest.fixture(scope="module")
def servers(clips_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Both servers and the daemon, over what `make demo` has made."""
    folder = tmp_path_factory.mktemp("ui")
    settings = small_settings(clips_folder, folder / "data")
    settings["shard_videos"] = 50
    settings["automation"] = {"retry_wait_s": 1}
    mlflow_port = free_port()  # the links that the demo stores lead to the server that is started afterwards
    demo = subprocess.run(
        [sys.executable, "-m", "pipelines.demo"],
        cwd=CHECKOUT,
        env=environment_in(folder, settings) | {"HAPVR_MLFLOW_PAGE": f"http://127.0.0.1:{mlflow_port}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    (folder / "demo.txt").write_text(demo.stdout, encoding="utf-8")
    with serving(folder, settings, mlflow_port=mlflow_port) as found:
        yield found


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
