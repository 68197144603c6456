"""The page as people who know nothing of models use it: what is unsure is work, files are dropped
anywhere, bad files get a sentence, and the collection says what it holds."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from hapvr.collection import add_folders, update_collection
from hapvr.scorer import steady_parts
from hapvr.search.confidence import Confidence
from tests.browser.conftest import screenshot
from tests.browser.test_search_page import NAMELESS
from tests.conftest import MakeOnce, write_clip
from tests.scorer.bundles import scene, write_scenes
from tests.serving.served import Client, fill_collection, serving
from tests.steps.search_projects import LONG, copied
from tests.test_collection import no_bar

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1200)]

SHORT = "in/short.mp4"
UNSURE = 0.7


@pytest.fixture(scope="session")
def client(make_once: MakeOnce, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    collection = make_once("served collection", fill_collection)
    with serving(copied(collection, tmp_path_factory.mktemp("people"))) as service:
        yield service


@pytest.fixture
def unsure(client: Client, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A service whose model is not sure of anything."""
    monkeypatch.setattr(Confidence, "of_candidate", lambda *_, **__: UNSURE)
    return client


def dropped(page: Page, files: list[Path]) -> None:
    """Drop files on the middle of the page, as a mouse does."""
    contents = [[file.name, list(file.read_bytes())] for file in files]
    page.evaluate(
        """(contents) => {
            const carried = new DataTransfer();
            for (const [name, bytes] of contents)
              carried.items.add(new File([new Uint8Array(bytes)], name));
            for (const kind of ["dragenter", "dragover", "drop"])
              document.querySelector("main").dispatchEvent(
                new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer: carried }));
        }""",
        contents,
    )


def test_what_is_unsure_is_gone_through_and_decided(page: Page, unsure: Client) -> None:
    """The list says what to do and shows both pictures; `u` leads to the next one; a mark counts
    at once in the line, the list and the groups."""
    page.goto(f"{unsure.address}/#/?id={SHORT}&top=3")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator(".headline")).to_have_text("Nothing certain; 3 are unsure: compare them")
    expect(page.get_by_text("Compare the two, then press Match or Not a match.")).to_be_visible()
    expect(page.locator(".unsure .part").first).to_contain_text("perhaps ")
    cards = page.locator(".unsure .result")
    expect(cards).to_have_count(3)
    assert cards.first.locator("img").count() == 2
    assert page.evaluate(NAMELESS) == []
    screenshot(page, "people-1-unsure")
    page.keyboard.press("u")
    expect(page.get_by_role("link", name="Next unsure (3 left)")).to_be_visible()
    page.locator("canvas.matrix").wait_for()
    first = page.url
    page.keyboard.press("m")
    expect(page.locator(".title .headline")).to_have_text("Marked as a match")
    page.keyboard.press("u")
    expect(page.get_by_role("link", name="Next unsure (2 left)")).to_be_visible()
    assert page.url != first
    page.keyboard.press("Escape")
    expect(page.locator(".headline")).to_have_text(
        "1 video shows the same footage; 2 are unsure: compare them"
    )
    cards.first.get_by_role("button", name="not a match").click()
    expect(cards).to_have_count(1)
    expect(page.locator(".headline")).to_contain_text("1 is unsure: compare it")
    assert "by ," not in page.locator("main").inner_text()
    for mark in unsure.get("/pairs").json["marks"]:
        body = {"query": mark["first"], "reference": mark["second"], "mark": None}
        unsure.ask("PATCH", "/pairs", body=body)


def test_a_pair_is_decided_on_the_first_screen_of_a_phone(
    browser: Browser, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both buttons are there; nothing lies beyond the right edge, also where the second is not
    certain; keys are not told to those who have none."""
    monkeypatch.setattr(steady_parts, "AMBIGUOUS", 2.0)
    with browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    ) as context:
        page = context.new_page()
        page.goto(f"{client.address}/#/?id={SHORT}&from=2&to=6")
        page.locator(".result .open").first.click()
        page.locator("canvas.matrix").wait_for()
        expect(page.locator("button.part").first).to_contain_text("exact second is not certain")
        for name in ("Match", "Not a match"):
            box = page.get_by_role("button", name=name, exact=True).bounding_box()
            assert box is not None
            assert box["y"] + box["height"] < 844

        expect(page.get_by_text("previous, next pair")).to_be_hidden()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        screenshot(page, "people-phone-pair")


@pytest.mark.parametrize("view", ["answer", "pair"])
def test_what_somebody_else_said_meanwhile_stays_and_is_shown(
    page: Page, client: Client, view: str
) -> None:
    """The page says so in a sentence, and shows the mark of the other one."""
    page.goto(f"{client.address}/#/?id={SHORT}")
    page.get_by_role("button", name="Search", exact=True).click()
    shown = page.locator(".result").first
    reference = shown.locator(".open").get_attribute("data-reference")
    if view == "pair":
        shown.locator(".open").click()
        page.locator("canvas.matrix").wait_for()
        shown = page.locator("main")

    body = {"query": SHORT, "reference": reference}
    client.ask("PATCH", "/pairs", body=body | {"mark": "match"})
    shown.get_by_role("button", name=re.compile("not a match", re.IGNORECASE)).click()
    expect(shown.locator(".notice")).to_contain_text("Somebody else has changed the mark")
    expect(shown).to_contain_text("Marked as a match")
    expect(shown.locator("button.match")).to_have_attribute("aria-pressed", "true")
    assert [mark["verdict"] for mark in client.get("/pairs").json["marks"]] == ["match"]
    client.ask("PATCH", "/pairs", body=body | {"mark": None})


def test_no_button_saves_a_plan_where_no_paths_are_shown(
    page: Page, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.service, "is_local", False)
    page.goto(f"{client.address}/#/duplicates")
    expect(page.get_by_text("hapvr duplicates --plan plan.sh")).to_be_visible()
    expect(page.get_by_role("button", name="Save as CSV")).to_have_count(0)


def test_plans_for_copies_are_saved_from_the_page(page: Page, client: Client) -> None:
    page.goto(f"{client.address}/#/duplicates")
    with page.expect_download() as table:
        page.get_by_role("button", name="Save as CSV").click()
    assert Path(table.value.path()).read_text(encoding="utf-8").startswith("group,action,")
    with page.expect_download() as script:
        page.get_by_role("button", name="Save as a script").click()
    assert script.value.suggested_filename.endswith(".sh")


def test_an_address_is_asked_for_only_where_hosts_are_allowed(
    page: Page, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.goto(client.address)
    expect(page.get_by_label("A video of the collection, or a path on the server")).to_be_visible()
    expect(page.get_by_text("URL")).to_have_count(0)
    allowed = replace(client.service.access, hosts=frozenset({"videos.example"}))
    monkeypatch.setattr(client.service, "access", allowed)
    page.reload()
    expect(page.get_by_text("Addresses of videos.example")).to_be_visible()


def test_duplicates_are_in_two_sections_and_heed_marks_at_once(page: Page, client: Client) -> None:
    page.goto(f"{client.address}/#/duplicates")
    certain = page.locator(".duplicates.certain .group")
    expect(certain).to_have_count(2)
    expect(page.locator(".duplicates.unsure")).to_contain_text("Nothing to decide.")
    copies = certain.filter(has_text="copy of short")
    screenshot(page, "people-2-duplicates")
    copies.get_by_role("button", name="not a match").click()
    expect(certain).to_have_count(1)
    assert len(client.get("/pairs").json["marks"]) == 1
    body = {"query": SHORT, "reference": "in/trips/copy of short.mp4", "mark": None}
    client.ask("PATCH", "/pairs", body=body)


def test_files_are_dropped_anywhere_and_each_has_a_row(
    page: Page, client: Client, tmp_path: Path
) -> None:
    """On another view, too; the file that cannot be used says so beside those that can."""
    empty = tmp_path / "empty.mp4"
    empty.touch()
    clip = write_scenes(tmp_path / "clip.mp4", list(LONG[3:9]))
    page.goto(f"{client.address}/#/marks")
    page.locator("h1").wait_for()
    dropped(page, [clip, empty])
    rows = page.locator(".sent li")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("1 video shows the same footage")
    expect(rows.last).to_contain_text("This file is empty.")
    screenshot(page, "people-3-several")
    rows.first.get_by_role("link", name="See the answer").click()
    expect(page.locator("h1")).to_have_text("clip.mp4")
    page.get_by_role("link", name="Search", exact=True).click()
    recent = page.locator(".recent li")
    expect(recent.first).to_contain_text("clip.mp4")
    page.wait_for_function("() => document.querySelector('.recent img').naturalWidth > 0")


def two_empty_files(folder: Path, beginning: str) -> list[Path]:
    files = [folder / f"{beginning}{number}.mp4" for number in range(2)]
    for file in files:
        file.touch()

    return files


def test_a_name_that_turns_writing_round_is_shown_as_it_is_stored(
    page: Page, client: Client, tmp_path: Path
) -> None:
    """Else a program could pass for a picture."""
    files = two_empty_files(tmp_path, "a\u202egpj.exe")
    page.goto(client.address)
    page.locator(".collection h2").wait_for()
    dropped(page, files)
    expect(page.locator(".sent .name").first).to_have_text("agpj.exe0.mp4")


def test_files_that_are_dropped_while_the_page_is_loaded_are_searched_for(
    page: Page, client: Client, tmp_path: Path
) -> None:
    """They wait for the view, and loading it does not begin anew."""
    files = two_empty_files(tmp_path, "")
    index = f"{client.address}/index"
    page.route(index, lambda route: (time.sleep(1), route.continue_()))
    page.goto(client.address)
    dropped(page, files)
    expect(page.locator(".sent li").last).to_contain_text("This file is empty.")


def sound_alone(file: Path) -> Path:
    with av.open(str(file), "w") as container:
        stream = container.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16000), np.float32), "fltp", "mono")
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())

    return file


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sound.m4a", "This file has sound but no pictures"),
        ("notes.mp4", "This file is neither a video nor a photo that can be read"),
    ],
    ids=["sound alone", "text"],
)
def test_a_file_that_cannot_be_used_gets_a_sentence(
    page: Page, client: Client, tmp_path: Path, name: str, said: str
) -> None:
    file = tmp_path / name
    if name == "sound.m4a":
        sound_alone(file)
    else:
        file.write_text("not a video " * 100)

    page.goto(client.address)
    page.locator("#file").set_input_files(file)
    expect(page.locator(".notice.problem")).to_contain_text(said)
    assert "`" not in page.locator("main").inner_text()


@pytest.mark.parametrize(
    "name",
    ["x" * 251 + ".png", "\u05e1\u05e8\u05d8\u05d5\u05df (2).png", "photo.png"],
    ids=["255 bytes", "right to left", "plain"],
)
def test_a_photo_has_no_length_and_no_parts(
    page: Page, client: Client, tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    Image.fromarray(scene(LONG[7])).save(file)
    page.goto(client.address)
    page.locator("#file").set_input_files(file)
    expect(page.get_by_text("A picture; looked at all 11 videos.")).to_be_visible()
    first = page.locator(".result").first
    expect(first).to_contain_text("at 0:07 of this video")
    assert " of yours" not in first.inner_text()
    first.locator(".open").click()
    expect(page.locator("canvas.matrix")).to_be_visible()
    expect(page.get_by_role("button", name="at 0:07 of this video")).to_be_visible()


def test_a_server_that_was_started_again_says_so(
    page: Page, client: Client, tmp_path: Path
) -> None:
    page.goto(f"{client.address}/#/results?job=of-an-earlier-service")
    expect(page.locator(".notice.problem")).to_contain_text("the service was started again")
    expect(page.get_by_role("link", name="New search")).to_be_visible()


def test_the_help_comes_with_the_service(page: Page, client: Client) -> None:
    """From the answer; tables, lists and code of the document are elements."""
    page.goto(f"{client.address}/#/?id={SHORT}")
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_text("How sure is this?").click()
    page.get_by_role("link", name="What the numbers mean").click()
    expect(page.locator("h1")).to_have_text("Is this the same footage?")
    assert page.locator("article table").count() == 4
    text = page.locator("article").inner_text()
    assert not re.search(r"\*\*|`|\]\(", text)


def test_paths_are_shown_and_copied(page: Page, client: Client) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{client.address}/#/?id={SHORT}")
    page.get_by_role("button", name="Search", exact=True).click()
    first = page.locator(".result").first
    expect(first.locator(".path")).to_contain_text("/videos/trips/copy of short.mp4")
    first.get_by_role("button", name="Copy the path").click()
    expect(first.get_by_text("Copied")).to_be_visible()
    copied_text = page.evaluate("() => navigator.clipboard.readText()")
    assert copied_text == first.locator(".path").inner_text()


@pytest.mark.filterwarnings("ignore:whitening")
def test_the_collection_takes_in_new_files(page: Page, tmp_path: Path) -> None:
    """Folders, files that cannot be used with their reasons, and an update with its progress."""
    folder = tmp_path / "videos"
    for number in range(4):
        write_clip(folder / f"{number}.mp4", seed=number, seconds=4)
    (folder / "broken.mp4").write_bytes(b"no video")
    project = add_folders(tmp_path / "root", [folder])
    update_collection(project, no_bar)
    with serving(project) as client:
        page.goto(client.address)
        panel = page.locator(".collection")
        expect(panel).to_contain_text("4 videos can be searched")
        expect(panel.locator(".path")).to_have_text(str(folder))
        expect(panel.locator(".unusable")).to_contain_text("videos/broken.mp4")
        expect(panel.locator(".unusable")).to_contain_text("neither a video nor a photo")
        assert page.evaluate(NAMELESS) == []
        write_clip(folder / "new.mp4", seed=9, seconds=4)
        page.get_by_role("button", name="Update now").click()
        expect(panel).to_contain_text("Everything is up to date.")
        expect(panel).to_contain_text("5 videos can be searched")
        expect(page.locator("header")).to_contain_text("5 videos")
        screenshot(page, "people-4-collection")
        page.get_by_label("A video of the collection").fill("videos/new.mp4")
        page.get_by_role("button", name="Search", exact=True).click()
        page.get_by_text("Why was a video not found?").click()
        page.get_by_label("A video of the collection, or").fill("broken.mp4")
        page.get_by_role("button", name="Explain").click()
        expect(page.locator("form p").last).to_contain_text("videos/broken.mp4 cannot be searched")


def contrast(page: Page) -> list[str]:
    """Texts whose contrast with what is behind them is below 4.5 to 1."""
    texts = page.evaluate(
        """() => {
          const parse = (color) => color.match(/[\\d.]+/g).map(Number);
          const light = (color) => { const [r, g, b] = parse(color).map((one) => {
            const part = one / 255;
            return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; });
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
          const behind = (one) => { for (; one; one = one.parentElement) {
            const color = getComputedStyle(one).backgroundColor;
            if (color.startsWith("rgb(")) return color; } return "rgb(255, 255, 255)"; };
          return [...document.querySelectorAll("main *, header *")]
            .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3
              && node.textContent.trim()) && one.checkVisibility()
              && !one.closest("[disabled], .off, .hidden, video"))
            .filter((one) => { const text = getComputedStyle(one).color;
              if (!text.startsWith("rgb(")) return false;
              const [a, b] = [light(text), light(behind(one))].sort((x, y) => y - x);
              return (a + 0.05) / (b + 0.05) < 4.5; })
            .map((one) => one.outerHTML.slice(0, 200)); }"""
    )
    return list(json.loads(json.dumps(texts)))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read_in_both_schemes(page: Page, client: Client, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(f"{client.address}/#/?id={SHORT}")
    page.locator(".collection").wait_for()
    assert contrast(page) == []
    page.get_by_role("button", name="Search", exact=True).click()
    page.locator(".result").first.wait_for()
    assert contrast(page) == []
    for view in ("duplicates", "watch", "marks", "help"):
        page.goto(f"{client.address}/#/{view}")
        page.locator("h1").wait_for()
        assert contrast(page) == []
