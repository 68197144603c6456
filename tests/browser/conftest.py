"""The UI as people use it: `make ui`, and a headless Chromium."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.conftest import CHECKOUT, small_settings
from tests.orchestration.servers import Servers, serving

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


@pytest.fixture(scope="session")
def servers(clips_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """All servers and the daemon over a new project, with automation switched on before there is anything."""
    folder = tmp_path_factory.mktemp("ui")
    shutil.copytree(clips_folder, folder / "clips")
    for path in folder.rglob("*.mp4"):
        os.utime(path, (time.time() - 3600,) * 2)
    settings = small_settings(folder / "clips", folder / "data") | {"shard_videos": 50}
    settings["automation"] = {"enabled": True, "retrain_new_videos": 3, "watch_every_s": 5}
    with serving(folder, settings) as found:
        yield found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    if CHROMIUM is None:
        pytest.fail("no chromium on this machine; install the distribution's package `chromium`")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page without memory of others."""
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.set_default_timeout(120_000)
    yield page
    page.close()


def screenshot(page: Page, name: str) -> None:
    """Keep what the page shows under test-artifacts/browser."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")
