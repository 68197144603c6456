"""Watch lists that are made and removed over HTTP, and what the collection says of itself."""

import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from hapvr.files import file_sha256
from hapvr.serving import collection as served_collection, folders
from hapvr.serving.background import Work
from hapvr.steps.project import COLLECTION_FILE
from hapvr.steps.watch_queries import LISTS
from tests.conftest import CHECKOUT
from tests.scorer.bundles import write_scenes
from tests.serving.served import Client, serving
from tests.steps.search_projects import LONG, copied


@pytest.fixture
def own(collection: Path, tmp_path: Path) -> Iterator[Client]:
    """A service over a collection of its own."""
    with serving(copied(collection, tmp_path / "served")) as client:
        yield client


def made_list(client: Client, folder: Path) -> str:
    """A list of a clip of long.mp4, once the collection was compared with it."""
    clip = write_scenes(folder / "clip.mp4", list(LONG[25:31]))
    job = client.upload(clip, top=1).json["job"]
    response = client.ask("POST", "/watch", body=clip.read_bytes(), job=job)
    assert response.status == 201
    assert ended(client)["error"] == ""
    return str(response.json["name"])


def ended(client: Client) -> Any:
    while client.get("/watch/job").json["running"]:
        time.sleep(0.1)
    return client.get("/watch/job").json


@pytest.mark.slow
def test_a_new_list_is_compared_with_the_archive_at_once(own: Client, tmp_path: Path) -> None:
    name = made_list(own, tmp_path)
    shown = own.get("/watch").json
    assert [match["video_id"] for match in shown["matches"]] == ["in/long.mp4"]
    (watched,) = shown["lists"]
    assert watched["name"] == name
    assert watched["removable"]
    assert watched["matches"] == 1
    assert shown["last_run"].startswith("20")
    picture = own.get(f"/watch-pictures/{watched['queries'][0]}", second=2, width=64)
    with Image.open(io.BytesIO(picture.body)) as image:
        assert image.width == 64


@pytest.mark.slow
def test_a_clip_that_is_sent_is_watched_for_after_the_service_was_started_again(
    own: Client, tmp_path: Path
) -> None:
    """Its answer is kept, and says which clip it was; without the clip there is nothing to keep."""
    clip = write_scenes(tmp_path / "my clip.mp4", list(LONG[25:31]))
    job = own.upload(clip, top=1).json["job"]
    with serving(own.service.project) as again:
        alone = again.ask("POST", "/watch", job=job)
        assert (alone.status, alone.json["code"]) == (410, "not_kept")
        sent = again.ask("POST", "/watch", body=clip.read_bytes(), job=job)
        assert (sent.status, sent.json.get("name")) == (201, "my-clip")
        assert ended(again)["error"] == ""


@pytest.mark.slow
def test_a_removed_list_takes_its_matches_along(own: Client, tmp_path: Path) -> None:
    name = made_list(own, tmp_path)
    (watched,) = own.get("/watch").json["lists"]
    assert own.ask("DELETE", f"/watch/{name}").status == 200
    shown = own.get("/watch").json
    assert shown["lists"] == []
    assert shown["matches"] == []
    assert own.get(f"/watch-pictures/{watched['queries'][0]}").status == 410


@pytest.mark.slow
def test_a_list_that_is_called_as_a_removed_one_was_has_none_of_its_matches(
    own: Client, tmp_path: Path
) -> None:
    """Before it was compared with anything, too."""
    name = made_list(own, tmp_path)
    assert own.ask("DELETE", f"/watch/{name}").status == 200
    another = write_scenes(tmp_path / "another.mp4", [900, 901, 902])
    copy = own.service.project.root.local_path(f"{LISTS}/{name}/{file_sha256(another)}.mp4")
    copy.parent.mkdir(parents=True)
    another.rename(copy)
    shown = own.get("/watch").json
    assert [each["name"] for each in shown["lists"]] == [name]
    assert shown["matches"] == []


@pytest.mark.parametrize("name", ["absent", "..", "%2e%2e", "..%2f..%2fdata", "a/b"])
def test_no_other_folder_is_removed(own: Client, name: str) -> None:
    before = sorted(Path(own.service.project.root.url).rglob("*"))
    assert own.ask("DELETE", f"/watch/{name}").status >= 400
    assert sorted(Path(own.service.project.root.url).rglob("*")) == before


@pytest.mark.slow
def test_lists_that_are_configured_while_the_service_runs_are_compared(
    own: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that began on the page keeps what they have found."""
    monkeypatch.setattr(served_collection, "REFRESH_S", 0.0)
    write_scenes(tmp_path / "watched" / "leak.mp4", list(LONG[20:26]))
    root = own.service.project.root
    settings = own.service.project.config.model_dump(mode="json") | {"data_root": root.url}
    settings["watch"]["lists"] = [{"name": "leaked", "path": str(tmp_path / "watched")}]
    root.local_path(COLLECTION_FILE).write_text(yaml.safe_dump(settings))
    name = made_list(own, tmp_path)
    finds = {row["name"]: row["matches"] for row in own.get("/watch").json["lists"]}
    assert finds.keys() == {name, "leaked"}
    assert min(finds.values()) > 0


def test_another_configuration_of_a_collection_is_served_as_it_is(
    collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the data root does not take its place."""
    monkeypatch.setattr(served_collection, "REFRESH_S", 0.0)
    project = copied(collection, tmp_path / "served")
    settings = project.config.model_dump(mode="json") | {"data_root": project.root.url}
    settings["watch"]["lists"] = [{"name": "leaked", "path": str(tmp_path)}]
    project.root.local_path(COLLECTION_FILE).write_text(yaml.safe_dump(settings))
    with serving(project) as client:
        assert client.get("/watch").json["lists"] == []


def test_the_collection_says_what_it_holds(client: Client) -> None:
    """One of a configuration of its own is not updated by the service."""
    shown = client.get("/collection").json
    (folder,) = shown["folders"]
    assert shown["videos"] == 11
    assert folder["name"] == "in"
    assert folder["videos"] == 11
    assert folder["there"]
    assert shown["updated"].startswith("20")
    assert not shown["can_update"]
    assert client.ask("POST", "/collection/job").json["code"] == "not_here"
    assert not client.get("/collection/job").json["running"]


def test_the_collection_says_of_which_files_a_part_is_missing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"video_id": "in/cut.mp4", "status": "ok", "is_partial": True, "message": "frames end"},
        {"video_id": "in/noted.mp4", "status": "ok", "is_partial": False, "message": "a note"},
    ]
    monkeypatch.setattr(folders, "collection_rows", lambda _: rows)
    shown = client.get("/collection").json
    assert shown["partial"] == [{"id": "in/cut.mp4", "missing": "frames end"}]
    assert shown["unusable"] == []


@pytest.mark.parametrize(
    "content", [b"x: [", b"nonsense: 1\n", b"\xff\xfe"], ids=["no YAML", "a wrong key", "no UTF-8"]
)
def test_a_configuration_that_breaks_while_it_is_served_is_named(
    own: Client, content: bytes
) -> None:
    """It is the owner's to correct, and nothing to report."""
    own.service.project.root.local_path(COLLECTION_FILE).write_bytes(content)
    answer = own.get("/collection")
    assert answer.status == 503
    assert answer.json["code"] == "configuration"
    assert COLLECTION_FILE in answer.json["error"]


def test_work_that_ends_in_a_panic_of_a_library_has_ended() -> None:
    """Those of Rust are no exceptions; the next work begins."""

    class PanicException(BaseException): ...

    def panic(_: Work) -> None:
        raise PanicException("index out of bounds")

    work = Work("panics")
    work.start(panic)
    work.close()
    assert not work.state.running
    assert "unexpected PanicException" in work.state.error


def test_without_an_index_the_collection_is_shown_as_empty(own: Client) -> None:
    """Its folders are there all the same."""
    own.service.project.root.delete("search/current.json")
    with serving(own.service.project) as client:
        shown = client.get("/collection").json
    assert shown["videos"] == 0
    assert shown["updated"] == ""
    assert [folder["name"] for folder in shown["folders"]] == ["in"]


def test_the_service_brings_the_present_documentation() -> None:
    """A copy: the page of the service shows it where nobody can reach another place."""
    served = CHECKOUT / "hapvr" / "serving" / "page" / "same_footage.md"
    written = CHECKOUT / "docs" / "same_footage.md"
    assert served.read_bytes() == written.read_bytes(), "copy docs/same_footage.md over it"
