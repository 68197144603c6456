"""A headless Chromium."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.conftest import CHECKOUT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = ("gpu", "quic", "background-networking", "component-update", "sync")
FLAGS = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]
expect.set_options(timeout=120_000)
SCREENSHOTS = CHECKOUT / "test-artifacts" / "browser"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
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
