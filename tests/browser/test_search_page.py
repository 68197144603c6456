"""The search page in a real browser: search, two videos in step, marks, watch lists, a foreign
page."""

import csv
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from hapvr.steps.watch_queries import LISTS
from tests.browser.conftest import screenshot, watched_project
from tests.conftest import MakeOnce
from tests.scorer.bundles import write_scenes
from tests.serving.served import Client, serving
from tests.steps.search_projects import LONG, copied

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]

NAMELESS = """() => [...document.querySelectorAll("input, select, button, a, video, canvas, meter")]
  .filter((one) => !(one.labels?.length || one.textContent.trim() || one.ariaLabel || one.title))
  .map((one) => one.outerHTML)"""
PART = "0:02\u20130:14 of this video = 0:10\u20130:22 of yours"
"""Of long.mp4 and part.mp4."""
TIMES = "() => [...document.querySelectorAll('video')].map((video) => video.currentTime)"


@pytest.fixture(scope="session")
def client(make_once: MakeOnce, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    project = watched_project(make_once, tmp_path_factory.mktemp("page"))
    with serving(project) as service:
        yield service


@pytest.fixture
def strict(page: Page, client: Client) -> Iterator[Page]:
    """A page that asks nobody but the service, and reports no error but that of the file that is
    gone."""
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if is_error(message) else None)
    foreign = re.compile(rf"^(?!{re.escape(client.address)}|blob:{re.escape(client.address)})")
    page.on(
        "request",
        lambda request: problems.append(request.url) if foreign.match(request.url) else None,
    )
    yield page
    assert problems == []


def is_error(message: ConsoleMessage) -> bool:
    return message.type == "error" and "410" not in message.text


def search_for(page: Page, client: Client, text: str) -> None:
    page.goto(f"{client.address}/#/")
    page.get_by_label("A video of the collection").fill(text)
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator(".headline")).to_be_visible()


def times_are(page: Page, query: float, reference: float) -> None:
    """Both videos show these seconds."""
    page.wait_for_function(
        f"() => {{ const [a, b] = ({TIMES})(); return Math.abs(a - {query}) < 0.3 && "
        f"Math.abs(b - {reference}) < 0.3 }}"
    )


def test_search_and_two_videos_in_step(strict: Page, client: Client) -> None:
    """By id; the best match opens at its part; both play in step, a click in the heat map and the
    keys move both."""
    page = strict
    search_for(page, client, "in/long.mp4")
    expect(page.get_by_text("random weights").first).to_be_visible()
    first = page.locator(".result").first
    expect(first).to_contain_text("in/trips/part.mp4")
    expect(first).to_contain_text(PART)
    expect(first).to_contain_text(
        re.compile(r"Same footage, (almost certain|very likely) \(9\d\.\d\s%\)")
    )
    expect(page.locator(".headline")).to_have_text("1 video shows the same footage")
    expect(page.get_by_text("looked at all 10 other videos")).to_be_visible()
    expect(page.get_by_alt_text("the query", exact=True)).to_be_visible()
    tail = page.locator("details.tail")
    expect(tail.locator("> summary")).to_have_text("9 more that do not match")
    assert tail.locator(".result").first.is_hidden()
    page.wait_for_function(
        "() => [...document.querySelectorAll('.result img')].slice(0, 2).every((one) => "
        "one.naturalWidth)"
    )
    assert page.evaluate(NAMELESS) == []
    screenshot(page, "search-1-matches")
    first.locator(".open").click()
    times_are(page, 10, 2)
    page.get_by_role("button", name="Play both").click()
    page.wait_for_function(f"() => ({TIMES})()[0] > 12.5")
    page.get_by_role("button", name="Pause both").click()
    query, reference = page.evaluate(TIMES)
    assert reference == pytest.approx(query - 8, abs=0.4)
    page.keyboard.press(".")  # the button has the focus: keys that are for writing are left alone
    page.locator("h1").click()
    page.keyboard.press(".")
    times_are(page, query + 1, query - 7)
    matrix = page.locator("canvas.matrix")
    box = matrix.bounding_box()
    matrix.click(position={"x": box["width"] * 5.5 / 16, "y": box["height"] * 30.5 / 40})
    times_are(page, 30.5, 5.5)
    page.get_by_role("button", name=PART).click()
    times_are(page, 10, 2)
    assert page.evaluate(NAMELESS) == []
    screenshot(page, "search-2-pair")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("2 of 10")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_text("1 of 10")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".result")).to_have_count(10)
    assert "false" not in page.locator(".view").inner_text()


def test_a_file_is_dropped_and_its_name_stays_text(
    strict: Page, client: Client, tmp_path: Path
) -> None:
    """The query plays from the browser's own copy; markup in its name is shown as it is."""
    page = strict
    clip = write_scenes(tmp_path / "<img src=x onerror=alert(1)>.mp4", [500, 501, *LONG[25:31]])
    page.goto(client.address)
    page.locator("#file").set_input_files(clip)
    expect(page.locator("h1")).to_have_text(clip.name)
    page.locator(".result .open").first.click()
    expect(page.locator("h1")).to_have_text("in/long.mp4")
    times_are(page, 2, 25)
    expect(page.locator("figcaption").first).to_contain_text(clip.name)
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.querySelector('.asked video')?.readyState >= 2")
    page.locator(".result .open").first.click()
    page.reload()  # the answer is still known, the file is not: its sampled pictures are
    expect(page.get_by_text("is not in this browser any more")).to_be_visible()
    page.wait_for_function("() => document.querySelector('.player img').naturalWidth > 0")
    assert page.locator("canvas.matrix").is_visible()


def test_the_same_incident_is_another_question(strict: Page, client: Client) -> None:
    """The answer says which question was asked, and what an untrained model cannot say."""
    page = strict
    page.goto(f"{client.address}/#/?id=in/long.mp4")
    page.get_by_label("Look for the same incident").check()
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("Asked: which videos show the same incident")).to_be_visible()
    expect(page.locator(".result").first).to_contain_text("in/trips/part.mp4")


def test_why_a_video_is_found_or_not(strict: Page, client: Client) -> None:
    """In three sentences below each result, with what `hapvr search --explain` prints behind them;
    and for a video that is not in the list."""
    page = strict
    page.goto(f"{client.address}/#/?id=in/long.mp4&top=1")
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_text("Why? in/trips/part.mp4").click()
    sentences = page.locator(".explain > p")
    expect(sentences).to_have_count(3)
    expect(sentences.first).to_contain_text(
        "looks like 0:02\u20130:14 of this video, in the same order"
    )
    page.get_by_text("All numbers").click()
    shown = page.locator(".results dl")
    expect(shown).to_contain_text("in/trips/part.mp4: shown")
    expect(shown).to_contain_text("common part  query 0:10-0:22 = 0:02-0:14")
    page.get_by_text("Why was a video not found?").click()
    page.get_by_label("A video of the collection").fill("in/short.mp4")
    page.get_by_role("button", name="Explain").click()
    expect(page.locator("form p").last).to_contain_text("at least 1 other videos are more alike")
    assert page.evaluate(NAMELESS) == []
    screenshot(page, "search-10-why")


def test_a_query_becomes_a_watch_list(page: Page, client: Client, tmp_path: Path) -> None:
    """The file of the browser is kept; the archive is compared with it at once, with pictures; the
    list is removed again."""
    clip = write_scenes(tmp_path / "my leak.mp4", [500, 501, *LONG[25:31]])
    project = copied(client.service.project.folder, tmp_path / "served")
    with serving(project) as service:
        page.goto(service.address)
        page.locator("#file").set_input_files(clip)
        page.get_by_role("button", name="Watch for this clip").click()
        expect(page.locator(".watch p")).to_contain_text("is a watch list now")
        screenshot(page, "search-11-watch-for")
        page.get_by_role("link", name="Watch lists").last.click()
        find = page.locator(".result", has_text="list my-leak;")
        expect(find).to_contain_text("in/long.mp4")
        page.wait_for_function(
            "() => [...document.querySelectorAll('img')].every((image) => image.naturalWidth)"
        )
        expect(page.get_by_text(re.compile("Compared last on 20.* UTC"))).to_be_visible()
        screenshot(page, "search-12-watching")
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Remove my-leak").click()
        expect(page.get_by_text("list my-leak;")).to_have_count(0)
        assert project.root.list_folders(LISTS) == []


def test_marks_are_made_and_taken_back(strict: Page, client: Client) -> None:
    """By a key; the next search leaves the pair out; the list of marks takes it back."""
    page = strict
    search_for(page, client, "in/short.mp4")
    page.locator(".result .open").first.click()
    button = page.get_by_role("button", name="Not a match")
    expect(button).to_have_attribute("aria-pressed", "false")
    page.locator("canvas.matrix").wait_for()
    page.keyboard.press("n")
    expect(button).to_have_attribute("aria-pressed", "true")
    search_for(page, client, "in/short.mp4")
    assert "copy of short" not in page.locator(".view").inner_html()
    expect(page.locator(".headline")).to_have_text("No video seems to show it")
    page.get_by_role("link", name="Marks").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    screenshot(page, "search-3-marks")
    page.get_by_role("link", name="Compare").click()
    page.locator("canvas.matrix").wait_for()
    expect(button).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Take back").click()
    expect(page.locator("tbody tr")).to_have_count(0)
    assert client.get("/pairs").json["marks"] == []
    search_for(page, client, "in/short.mp4")
    expect(page.locator(".result").first).to_contain_text("copy of short")


def test_watch_lists_show_what_they_found(strict: Page, client: Client) -> None:
    """With time and part; a match is marked and the mark taken back; the pair view opens for a
    query that is a file."""
    page = strict
    page.goto(f"{client.address}/#/watch")
    row = page.locator(".result")
    expect(row).to_have_count(1)
    part = "0:22\u20130:30 of this video = 0:01\u20130:09 of yours"
    for text in ("in/long.mp4", "leak.mp4", "list leaked", part):
        expect(row).to_contain_text(text)
    expect(row).to_contain_text(re.compile(r"found 20\d\d-\d\d-\d\d \d\d:\d\d"))
    assert page.evaluate(NAMELESS) == []
    screenshot(page, "search-6-watch")
    button = page.get_by_role("button", name="not a match")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    (mark,) = client.get("/pairs").json["marks"]
    assert {name.rsplit("/", 1)[-1] for name in mark["names"]} == {"leak.mp4", "long.mp4"}
    (shown,) = client.get("/watch", watch_list="leaked").json["matches"]
    assert shown["mark"] == "not_a_match"
    assert client.get("/watch", watch_list="another").json["total"] == 0
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    assert client.get("/pairs").json["marks"] == []
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator("h1")).to_have_text("in/long.mp4")
    expect(page.locator("canvas.matrix")).to_be_visible()
    expect(page.get_by_role("button", name=part)).to_be_visible()


def test_with_a_token_a_case_is_worked_on_and_kept(
    page: Page, client: Client, tmp_path: Path
) -> None:
    """The token is asked for once, again where it is wrong; duplicates are looked for; a mark has a
    name; the answer is kept."""
    file = tmp_path / "tokens"
    file.write_text(f"anna mark {sha256(b'secret').hexdigest()}")
    file.chmod(0o600)
    project = copied(client.service.project.folder, tmp_path / "served")
    for folder in ("duplicate_pairs", "duplicate_groups"):
        project.root.delete_folder(folder)
    with serving(project, token_file=file) as service:
        page.goto(f"{service.address}/#/duplicates")
        for token in ("wrong", "secret"):
            page.get_by_label("token").fill(token)
            page.get_by_role("button", name="Continue").click()

        page.get_by_role("button", name="Look through them now").click()
        expect(page.locator(".group")).to_have_count(2)
        assert page.locator(".notice.warning", has_text="looked through").count() == 0
        search_for(page, service, "in/short.mp4")
        page.locator(".result .open").first.click()
        page.wait_for_function(
            "() => [...document.querySelectorAll('video')].every((one) => one.readyState >= 2)"
        )
        page.locator("canvas.matrix").wait_for()
        page.keyboard.press("m")
        expect(page.get_by_role("button", name="Match", exact=True)).to_have_attribute(
            "aria-pressed", "true"
        )
        page.get_by_role("link", name="Marks").click()
        expect(page.locator("tbody tr")).to_contain_text("anna")
        search_for(page, service, "in/short.mp4")
        expect(page.locator(".said").first).to_contain_text("Marked as a match by anna, 20")
        page.wait_for_function("() => document.querySelector('.result img').naturalWidth > 0")
        page.get_by_text("Keep this answer").click()
        page.get_by_label("Author").fill("Anna")
        page.get_by_label("Note").fill("case 7")
        assert page.evaluate(NAMELESS) == []
        screenshot(page, "search-8-keep")
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as CSV").click()
        assert re.fullmatch(
            r"matches of short 20\d\d-\d\d-\d\d\.csv", download.value.suggested_filename
        )
        (row, *_) = csv.DictReader(download.value.path().open(encoding="utf-8"))
        cells = [row[name] for name in ("marked_by", "author", "note", "model")]
        assert sorted(cells) == ["Anna", "anna", "bundle-0", "case 7"]
        page.get_by_role("button", name="Report with pictures").click()
        expect(page.locator(".report")).to_contain_text("Asked on20")
        expect(page.locator(".report")).to_contain_text("case 7")
        expect(page.locator(".reported").first).to_contain_text("Marked as a match by anna")
        page.wait_for_function(
            "() => [...document.querySelectorAll('.proof img')].every((one) => one.naturalWidth)"
        )
        page.emulate_media(media="print")
        assert page.get_by_role("navigation", name="Views").is_hidden()
        screenshot(page, "search-9-print")


def test_a_phone_shows_cards(browser: Browser, client: Client) -> None:
    """At 390 px nothing lies beyond the right edge; rows of tables are cards whose values say what
    they are."""
    client.ask(
        "PATCH",
        "/pairs",
        body={"query": "in/short.mp4", "reference": "in/long.mp4", "mark": "not_a_match"},
    )
    with browser.new_context(
        viewport={"width": 390, "height": 844}, color_scheme="dark"
    ) as context:
        page = context.new_page()
        search_for(page, client, "in/long.mp4")
        for view in ("results", "duplicates", "marks", "watch"):
            if view != "results":
                page.goto(f"{client.address}/#/{view}")
                page.locator("tbody tr, .result").first.wait_for()

            if view in ("duplicates", "marks"):
                assert page.locator("thead").first.is_hidden()
            too_wide = page.evaluate(
                """() => [...document.querySelectorAll("main *")]
                    .filter((one) => one.getBoundingClientRect().right > 390.5)
                    .map((one) => one.outerHTML)"""
            )
            assert too_wide == []
            screenshot(page, f"search-7-phone-{view}")

    client.ask(
        "PATCH", "/pairs", body={"query": "in/short.mp4", "reference": "in/long.mp4", "mark": None}
    )
