"""A headless Chromium."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from hapvr.steps.watch_lists import make_watch_matches
from tests.conftest import CHECKOUT, MakeOnce
from tests.scorer.bundles import write_scenes
from tests.serving.served import fill_collection
from tests.steps.search_projects import LONG, copied

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = ("gpu", "quic", "background-networking", "component-update", "sync")
FLAGS = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]
expect.set_options(timeout=120_000)
SCREENSHOTS = CHECKOUT / "test-artifacts" / "browser"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a file: while it is open, no other test of this process can run
    an event loop."""
    if CHROMIUM is None:
        pytest.fail("no chromium on this machine; install the distribution's package `chromium`")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)


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


def watched_project(make_once: MakeOnce, folder: Path) -> Project:
    """A collection with copies, and a watch list of four clips, one of which has found something,
    in a new folder."""
    collection = make_once("served collection", fill_collection)
    write_scenes(folder / "watched" / "leak.mp4", [500, *LONG[22:30], 501])
    for number in range(3):
        write_scenes(folder / "watched" / f"nothing {number}.mp4", [900 + number, 910 + number])

    lists = [{"name": "leaked", "path": str(folder / "watched")}]
    project = copied(collection, folder, **{"watch.lists": lists})
    searcher = Searcher.open(project)
    for key in searcher.collection.shards():
        make_watch_matches(project, searcher, key)
    return project
