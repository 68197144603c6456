"""What the service tells of its collection, and media by id."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from tests.serving.served import GONE, REPLACED, Client, serving
from tests.stages.search_projects import copied

SHORT, COPY = "in/short.mp4", "in/trips/copy of short.mp4"


def test_health_and_index(client: Client) -> None:
    assert client.get("/health").json["status"] == "ok"
    found = client.get("/index").json
    assert (found["videos"], found["sources"], found["problem"]) == (11, ["in"], "")
    assert "random weights" in found["warnings"][0]
    assert "/" not in found["model"]


def test_videos_are_listed_a_piece_at_a_time(client: Client) -> None:
    found = client.get("/videos", contains="SHORT", limit=1, offset=1).json
    assert found["total"] == 2
    assert [row["id"] for row in found["videos"]] == [COPY]
    assert client.get(f"/videos/{COPY}").json == found["videos"][0]
    assert client.get("/videos", limit=0).status == 400


def test_media_is_the_file_by_ranges(client: Client, collection: Path) -> None:
    """Whole, a range, one beyond its end; only ids of the collection have media."""
    data = (collection / "videos" / "trips" / "copy of short.mp4").read_bytes()
    whole = client.get(f"/media/{COPY}")
    assert (whole.status, whole.body, whole.headers["content-type"]) == (200, data, "video/mp4")
    part = client.get(f"/media/{COPY}", headers={"range": "bytes=10-19"})
    assert (part.status, part.body) == (206, data[10:20])
    assert part.headers["content-range"] == f"bytes 10-19/{len(data)}"
    assert client.get(f"/media/{COPY}", headers={"range": f"bytes={len(data)}-"}).status == 416
    for name in ("in/absent.mp4", "../config.yaml", "in/../../config.yaml", str(collection / "config.yaml"), ""):
        refused = client.get(f"/media/{name}")
        assert refused.status == 404, name
        assert "error" in refused.json


@pytest.mark.parametrize(("video_id", "code"), [(GONE, "gone"), (REPLACED, "replaced")])
def test_a_video_that_was_deleted_or_replaced_after_it_was_indexed(client: Client, video_id: str, code: str) -> None:
    """It is still found and has pictures; its media says what to do, and another file is not shown in its place."""
    answer = client.get(f"/media/{video_id}")
    assert (answer.status, answer.json["code"]) == (410, code)
    assert "`hapvr index update`" in answer.json["error"]
    assert client.get(f"/thumbnails/{video_id}").status == 200
    assert client.search(id=video_id).status == 200


def test_thumbnails_are_small_pictures(client: Client) -> None:
    answer = client.get(f"/thumbnails/{COPY}", second=3.2, width=64)
    with Image.open(io.BytesIO(answer.body)) as picture:
        assert (picture.format, picture.width) == ("JPEG", 64)
    assert client.get("/thumbnails/in/absent.mp4").status == 404
    assert client.get(f"/thumbnails/{COPY}", second="nan").status == 400
    assert client.get(f"/thumbnails/{COPY}", width=100_000).status == 400


def test_every_answer_forbids_foreign_content(client: Client) -> None:
    """The page, JSON and media: a strict policy, no guesses at types."""
    for path in ("/", "/health", f"/media/{SHORT}", "/absent"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert client.get("/absent").json["code"] == "http"


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/health", {"host": "evil.example"}),
        ("POST", "/search", {"origin": "http://evil.example"}),
        ("PATCH", "/pairs", {"origin": "null"}),
        ("POST", "/search", {"sec-fetch-site": "cross-site"}),
        ("GET", f"/media/{SHORT}", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}),
    ],
    ids=str,
)
def test_foreign_pages_are_refused(client: Client, method: str, path: str, headers: dict[str, str]) -> None:
    assert client.ask(method, path, headers=headers).status == 403


def test_without_an_index_the_service_says_what_to_run(collection: Path, tmp_path: Path) -> None:
    """No index: it starts all the same. Damaged: named. Once it is there, it is used without a restart."""
    project = copied(collection, tmp_path, **{"service.refresh_s": 0})
    place = project.root.local_path("search/current.json")
    whole = place.read_bytes()
    place.unlink()
    with serving(project) as client:
        assert client.get("/health").status == 200
        missing = client.search(id=SHORT)
        assert missing.status == 503
        assert "`hapvr index build` makes one" in missing.json["error"]
        assert str(tmp_path) not in missing.json["error"]
        assert "hapvr index build" in client.get("/index").json["problem"]
        for damaged in (b"", b"[]", b'{"place": 1}', whole[:20]):
            place.write_bytes(damaged)
            answer = client.get("/videos")
            assert (answer.status, answer.json["code"]) == (503, "no_index")
        place.write_bytes(whole)
        assert client.search(id=SHORT).status == 200
        place.write_bytes(b"{}")  # the open index goes on, and GET /index says that something is wrong
        assert client.search(id=SHORT).status == 200
        assert "damaged" in client.get("/index").json["problem"]
