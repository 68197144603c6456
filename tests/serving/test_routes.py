"""The page, media, thumbnails, and what every address answers over HTTP."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hapvr.search import marks
from hapvr.serving.collection import OpenIndex
from tests.serving.served import COPY, GONE, REPLACED, SHORT, Answer, Client, serving
from tests.steps.search_projects import copied


def test_a_service_is_healthy(client: Client) -> None:
    assert client.get("/health").json["status"] == "ok"


def test_the_index_is_described_without_paths(client: Client) -> None:
    """And with its warnings."""
    payload = client.get("/index").json
    assert payload["videos"] == 11
    assert payload["problem"] == ""
    assert "random weights" in payload["warnings"][0]
    assert "/" not in payload["model"]


def test_videos_are_listed_a_piece_at_a_time(client: Client) -> None:
    """Of those whose names contain something; each piece is as its own address tells it."""
    payload = client.get("/videos", contains="SHORT", limit=1, offset=1).json
    assert payload["total"] == 2
    assert [row["id"] for row in payload["videos"]] == [COPY]
    assert client.get(f"/videos/{COPY}").json == payload["videos"][0]


def test_a_video_is_found_by_the_present_name_of_its_file(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In suggestions and where people ask why it was not found, but not by those who may not see
    where files are."""
    present = {SHORT: "renamed.mp4"}
    monkeypatch.setattr(OpenIndex, "_file_name", lambda _, video_id: present.get(video_id, ""))
    job = client.search(id=COPY).json["job"]
    reason = client.get(f"/jobs/{job}/explanation", reference="renamed.mp4")
    shown = client.get("/videos", contains="Renamed").json["videos"]
    assert [row["id"] for row in shown] == [SHORT]
    assert reason.json["reason"] == "It is in the list of the answer."
    monkeypatch.setattr(client.service, "is_local", False)
    assert client.get("/videos", contains="Renamed").json["total"] == 0
    assert client.get(f"/jobs/{job}/explanation", reference="renamed.mp4").status == 404


@pytest.mark.parametrize(("name", "status"), [("long.mp4", 200), ("absent.mp4", 404)])
def test_the_name_of_a_file_says_which_video_is_meant(
    client: Client, name: str, status: int
) -> None:
    """Where one is called so."""
    assert client.search(id=name).status == status


def test_a_limit_that_is_no_number_is_shown(client: Client) -> None:
    assert client.get("/videos", limit="x7").json["error"].endswith("(got 'x7')")


@pytest.fixture(scope="module")
def copy_bytes(collection: Path) -> bytes:
    """The file of COPY."""
    return (collection / "videos" / "trips" / "copy of short.mp4").read_bytes()


def test_media_is_the_file(client: Client, copy_bytes: bytes) -> None:
    whole = client.get(f"/media/{COPY}")
    assert whole.status == 200
    assert whole.body == copy_bytes
    assert whole.headers["content-type"] == "video/mp4"


def test_a_range_of_media_is_a_part_of_the_file(client: Client, copy_bytes: bytes) -> None:
    part = client.get(f"/media/{COPY}", headers={"range": "bytes=10-19"})
    assert part.status == 206
    assert part.body == copy_bytes[10:20]
    assert part.headers["content-range"] == f"bytes 10-19/{len(copy_bytes)}"


def test_a_range_beyond_the_end_of_media_is_refused(client: Client, copy_bytes: bytes) -> None:
    beyond = {"range": f"bytes={len(copy_bytes)}-"}
    assert client.get(f"/media/{COPY}", headers=beyond).status == 416


@pytest.mark.parametrize(
    "name",
    [
        "in/absent.mp4",
        "../config.yaml",
        "in/../../config.yaml",
        "{collection}/config.yaml",
        "",
    ],
)
def test_only_ids_of_the_collection_have_media(client: Client, collection: Path, name: str) -> None:
    assert client.get(f"/media/{name.format(collection=collection)}").status == 404


@pytest.mark.parametrize(("video_id", "code"), [(GONE, "gone"), (REPLACED, "replaced")])
def test_a_file_that_is_gone_or_another_by_now_is_not_sent(
    client: Client, video_id: str, code: str
) -> None:
    """What is stored of it still answers."""
    answer = client.get(f"/media/{video_id}")
    assert answer.status == 410
    assert answer.json["code"] == code
    assert "`hapvr index update`" in answer.json["error"]
    assert client.get(f"/thumbnails/{video_id}").status == 200
    assert client.search(id=video_id).status == 200


def test_thumbnails_are_small_pictures(client: Client) -> None:
    answer = client.get(f"/thumbnails/{COPY}", second=3.2, width=64)
    with Image.open(io.BytesIO(answer.body)) as picture:
        assert picture.format == "JPEG"
        assert picture.width == 64


@pytest.mark.parametrize(("asked", "is_black"), [({"second": 0}, True), ({}, False)])
def test_the_thumbnail_of_no_second_is_the_first_that_shows_something(
    client: Client, asked: dict[str, Any], is_black: bool
) -> None:
    answer = client.get(f"/thumbnails/{GONE}", **asked)
    with Image.open(io.BytesIO(answer.body)) as picture:
        assert (np.asarray(picture).mean() < 20) == is_black


def test_what_foreign_pages_send_is_refused(client: Client) -> None:
    assert client.get("/health", headers={"host": "evil.example"}).status == 403
    assert client.ask("POST", "/search", headers={"origin": "http://evil.example"}).status == 403


@pytest.mark.parametrize("path", ["/", "/main.js", "/health", f"/media/{SHORT}", "/absent"])
def test_every_answer_forbids_foreign_content(client: Client, path: str) -> None:
    """The page, JSON, media and refusals: a strict policy, no guesses at types."""
    headers = client.get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_the_page_is_there_and_other_addresses_are_not(client: Client) -> None:
    assert client.get("/absent").json["code"] == "http"
    assert b"HAP-VR" in client.get("/").body


DAMAGED = (b"", b'{"place": 1}', b"cut")
"""Records of the current index; the last stands for one of which the end is missing."""


@dataclass(frozen=True)
class Course:
    """Answers of a service that starts without an index."""

    folder: Path
    health: Answer
    missing: Mapping[str, Answer]
    """by address, while there is no index"""
    problem: str
    """of `GET /index`, meanwhile"""
    marks: list[Any]
    damaged: list[Answer]
    """while the record of the index was one of DAMAGED"""
    back: Mapping[str, Answer]
    """by address, once the index is there"""
    kept: Answer
    """of a search after the record of an open index was damaged"""
    new_problem: str
    worn: Mapping[str, Answer]
    """by address, once a file of the open index was found to be damaged"""


@pytest.fixture(scope="module")
def course(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Course:
    folder = tmp_path_factory.mktemp("course")
    project = copied(collection, folder)
    place = project.root.local_path("search/current.json")
    whole = place.read_bytes()
    marks.mark(project.root, SHORT, COPY, "match")
    place.unlink()
    with serving(project) as client:
        health = client.get("/health")
        missing = {"/search": client.search(id=SHORT), "/ready": client.get("/ready")}
        problem = client.get("/index").json["problem"]
        listed = client.get("/pairs").json["marks"]
        damaged = []
        for record in DAMAGED:
            place.write_bytes(whole[:20] if record == b"cut" else record)
            damaged.append(client.get("/videos"))

        place.write_bytes(whole)
        back = {"/search": client.search(id=SHORT), "/ready": client.get("/ready")}
        place.write_bytes(b"{}")
        kept = client.search(id=SHORT)
        new_problem = client.get("/index").json["problem"]
        client.service.collection.current().searcher.damage.append("search: a file is damaged")
        worn = {path: client.get(path) for path in ("/ready", "/health")}

    return Course(
        folder,
        health,
        missing,
        problem,
        listed,
        damaged,
        back,
        kept,
        new_problem,
        worn,
    )


def test_a_service_without_an_index_starts_all_the_same(course: Course) -> None:
    assert course.health.status == 200


@pytest.mark.parametrize("path", ["/search", "/ready"])
def test_a_service_without_an_index_says_what_to_run(course: Course, path: str) -> None:
    """It is not ready; no folder of this machine is told."""
    answer = course.missing[path]
    assert answer.status == 503
    assert answer.json["code"] == "no_index"
    assert "`hapvr index build` makes one" in answer.json["error"]
    assert str(course.folder) not in answer.json["error"]


def test_a_service_without_an_index_shows_the_problem(course: Course) -> None:
    assert "hapvr index build" in course.problem


def test_marks_of_videos_that_no_index_has_are_shown(course: Course) -> None:
    assert [row["in_collection"] for row in course.marks] == [False]


@pytest.mark.parametrize("case", range(len(DAMAGED)), ids=["empty", "other", "cut"])
def test_a_damaged_record_of_the_index_is_as_none(course: Course, case: int) -> None:
    assert course.damaged[case].status == 503
    assert course.damaged[case].json["code"] == "no_index"


@pytest.mark.parametrize("path", ["/search", "/ready"])
def test_an_index_that_comes_is_used_without_a_restart(course: Course, path: str) -> None:
    assert course.back[path].status == 200


def test_an_open_index_goes_on_while_its_record_is_damaged(course: Course) -> None:
    """`GET /index` says that something is wrong."""
    assert course.kept.status == 200
    assert "damaged" in course.new_problem


def test_a_service_with_a_damaged_index_is_healthy_and_not_ready(course: Course) -> None:
    assert course.worn["/ready"].status == 503
    assert course.worn["/health"].status == 200
