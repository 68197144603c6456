"""Every view of the page, light, dark and on a phone: axe-core finds nothing that keeps people from
using it, and a picture of each is kept."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import screenshot, watched_project
from tests.conftest import MakeOnce
from tests.scorer.bundles import write_scenes
from tests.serving.served import Client, serving
from tests.steps.search_projects import LONG

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1600, "height": 1000}},
    "dark": {"viewport": {"width": 1600, "height": 1000}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}
COMPLETE = """() => [...document.images]
  .filter((image) => image.checkVisibility() && image.getBoundingClientRect().top < innerHeight)
  .every((image) => image.complete)"""
"""Pictures further down are loaded when somebody scrolls there."""


@pytest.fixture(scope="module")
def client(make_once: MakeOnce, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A collection with copies, a mark and a watch list that has found something."""
    project = watched_project(make_once, tmp_path_factory.mktemp("looks"))
    with serving(project) as served:
        mark = {"query": "in/short.mp4", "reference": "in/long.mp4", "mark": "not_a_match"}
        served.ask("PATCH", "/pairs", body=mark)
        yield served


@pytest.fixture(params=LOOKS)
def look(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def page(browser: Browser, look: str) -> Iterator[Page]:
    with browser.new_context(**LOOKS[look]) as context:
        page = context.new_page()
        page.set_default_timeout(120_000)
        yield page


def problems(page: Page) -> list[str]:
    """What axe-core finds of the page as it is, each with the elements."""
    violations = Axe().run(page).response["violations"]
    return [
        f"{violation['id']}: {node['html']}"
        for violation in violations
        for node in violation["nodes"]
    ]


def check(page: Page, look: str, view: str) -> None:
    """No problem with a view, nothing beyond its right edge, and a picture of it."""
    page.wait_for_function(COMPLETE)
    assert problems(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    screenshot(page, f"look-{view}-{look}")


def test_an_answer_and_what_it_leads_to_can_be_used_by_all(
    page: Page, look: str, client: Client, tmp_path: Path
) -> None:
    """The form, a list with all that unfolds, a pair, and a report."""
    clip = write_scenes(tmp_path / "clip.mp4", [500, 501, *LONG[25:31]])
    page.goto(client.address)
    expect(page.locator(".collection h2")).to_be_visible()
    check(page, look, "search")

    page.locator("#file").set_input_files(clip)
    expect(page.locator(".headline")).to_be_visible()
    for fold in ("How sure is this?", "Keep this answer", "Why was a video not found?"):
        page.get_by_text(fold).click()
    page.locator(".explain summary").first.click()
    check(page, look, "answer")

    page.locator(".result .open").first.click()
    expect(page.locator("canvas.matrix")).to_be_visible()
    check(page, look, "pair")

    page.go_back()
    page.get_by_text("Keep this answer").click()
    page.get_by_role("button", name="Report with pictures").click()
    expect(page.locator(".report h1")).to_be_visible()
    check(page, look, "report")


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        ("duplicates", ".group"),
        ("watch", ".result"),
        ("marks", "tbody tr"),
        ("help", "article h2"),
        ("requests", "article h2"),
        ("results?job=of-an-earlier-on", ".notice.problem"),
    ],
    ids=["duplicates", "watch lists", "marks", "help", "requests", "an answer that is gone"],
)
def test_other_views_can_be_used_by_all(
    page: Page, look: str, client: Client, view: str, shown: str
) -> None:
    page.goto(f"{client.address}/#/{view}")
    page.locator(shown).first.wait_for()
    check(page, look, view.partition("?")[0])
