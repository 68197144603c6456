"""The page, media, thumbnails, and what every address answers over HTTP."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hapvr.search import marks
from tests.serving.served import COPY, GONE, REPLACED, SHORT, Client, serving
from tests.steps.search_projects import copied


def test_health_index_and_videos(client: Client) -> None:
    """What answers and its warnings, without paths; videos are listed a piece at a time."""
    assert client.get("/health").json["status"] == "ok"
    payload = client.get("/index").json
    assert payload["videos"] == 11
    assert payload["problem"] == ""
    assert "random weights" in payload["warnings"][0]
    assert "/" not in payload["model"]
    payload = client.get("/videos", contains="SHORT", limit=1, offset=1).json
    assert payload["total"] == 2
    assert [row["id"] for row in payload["videos"]] == [COPY]
    assert client.get(f"/videos/{COPY}").json == payload["videos"][0]
    assert client.get("/videos", limit="x7").json["error"].endswith("(got 'x7')")


def test_media_is_the_file_by_ranges(client: Client, collection: Path) -> None:
    """Whole, a range, and one beyond its end."""
    data = (collection / "videos" / "trips" / "copy of short.mp4").read_bytes()
    whole = client.get(f"/media/{COPY}")
    assert whole.status == 200
    assert whole.body == data
    assert whole.headers["content-type"] == "video/mp4"
    part = client.get(f"/media/{COPY}", headers={"range": "bytes=10-19"})
    assert part.status == 206
    assert part.body == data[10:20]
    assert part.headers["content-range"] == f"bytes 10-19/{len(data)}"
    assert client.get(f"/media/{COPY}", headers={"range": f"bytes={len(data)}-"}).status == 416


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


def test_without_an_index_the_service_says_what_to_run(collection: Path, tmp_path: Path) -> None:
    """No index: it starts all the same, and is not ready. Damaged: named. Once it is there, it is
    used without a restart."""
    project = copied(collection, tmp_path)
    place = project.root.local_path("search/current.json")
    whole = place.read_bytes()
    marks.mark(project.root, SHORT, COPY, "match")
    place.unlink()
    with serving(project) as client:
        assert client.get("/health").status == 200
        for missing in (client.search(id=SHORT), client.get("/ready")):
            assert missing.status == 503
            assert missing.json["code"] == "no_index"
            assert "`hapvr index build` makes one" in missing.json["error"]
            assert str(tmp_path) not in missing.json["error"]

        assert "hapvr index build" in client.get("/index").json["problem"]
        assert [row["in_collection"] for row in client.get("/pairs").json["marks"]] == [False]
        for damaged in (b"", b'{"place": 1}', whole[:20]):
            place.write_bytes(damaged)
            answer = client.get("/videos")
            assert answer.status == 503
            assert answer.json["code"] == "no_index"

        place.write_bytes(whole)
        assert client.search(id=SHORT).status == client.get("/ready").status == 200
        place.write_bytes(
            b"{}"
        )  # the open index goes on, and GET /index says that something is wrong
        assert client.search(id=SHORT).status == 200
        assert "damaged" in client.get("/index").json["problem"]
        client.service.collection.current().searcher.damage.append("search: a file is damaged")
        assert (client.get("/ready").status, client.get("/health").status) == (503, 200)
