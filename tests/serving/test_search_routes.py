"""Searches over HTTP: what is found, and what bad requests are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.scorer.bundles import scene, write_scenes
from tests.serving.served import Client, serving
from tests.stages.search_projects import LONG, copied
from tests.stages.test_searcher import black


def names(answer: Any) -> list[str]:
    return [match["reference"] for match in answer["answer"]["matches"]]


def test_a_video_of_the_collection_finds_its_copy(client: Client) -> None:
    """By id: the rows of `hapvr search`, the warning of a random model with them."""
    found = client.search(id="in/short.mp4", top=2).json
    assert found["status"] == "done"
    assert names(found)[0] == "in/trips/copy of short.mp4"
    assert len(names(found)) == 2
    assert "random weights" in found["answer"]["warnings"][0]
    assert found["answer"]["prior"] == pytest.approx(0.2)
    best = found["answer"]["matches"][0]
    assert best["segments"][0]["query_start_s"] == 0
    assert best["probability"] > 0.9


def test_an_upload_is_searched_and_deleted(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has the sender's name and never the temporary one; a still picture is known by its suffix."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    clip = write_scenes(tmp_path / "<b>my clip.mp4", [500, 501, *LONG[25:31]])
    found = client.upload(clip, top=1, **{"from": 2}).json
    match = found["answer"]["matches"][0]
    assert found["query"] == match["query"] == "<b>my clip.mp4"
    assert match["reference"] == "in/long.mp4"
    assert (match["segments"][0]["query_start_s"], match["segments"][0]["reference_start_s"]) == (2, 25)
    picture = tmp_path / "still.png"
    Image.fromarray(scene(LONG[7])).save(picture)
    assert names(client.upload(picture).json)[0] == "in/long.mp4"
    assert list((tmp_path / "temporary").glob("hapvr-upload-*")) == []


def test_a_long_search_is_a_job(collection: Path, tmp_path: Path) -> None:
    """202 with the address of the job, which tells the end; a job can be asked for again, and ended."""
    with serving(copied(collection, tmp_path, **{"service.answer_within_s": 0})) as client:
        begun = client.ask("POST", "/search", body={"id": "in/long.mp4"})
        assert begun.status == 202
        assert begun.headers["location"] == f"/jobs/{begun.json['job']}"
        done = client.ended(begun)
        assert names(done.json)[0] == "in/trips/part.mp4"
        assert client.get(begun.headers["location"]).json == done.json
        assert client.ask("DELETE", begun.headers["location"]).json["status"] == "done"
        failed = client.ended(client.ask("POST", "/search", body={"id": "in/absent.mp4"}))
        assert (failed.json["status"], failed.json["code"]) == ("failed", "unknown_id")


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({}, 400, "wanted one of path, url and id"),
        ({"id": "in/short.mp4", "path": "/a.mp4"}, 400, "wanted one of path, url and id"),
        ({"id": "in/short.mp4", "top": 0}, 400, "top"),
        ({"id": "in/short.mp4", "top": 10**9}, 400, "top"),
        ({"id": "in/short.mp4", "tpo": 1}, 400, "tpo"),
        ({"id": "in/short.mp4", "from": 5, "to": 3}, 400, "wanted 0 <= from < to"),
        ({"id": "in/short.mp4", "at": 1, "to": 3}, 400, "wanted one of the two"),
        ({"id": "in/short.mp4", "min_probability": float("nan")}, 400, "min_probability"),
        ({"id": "in/short.mp4", "from": 500}, 422, "has no frame from 500 s on"),
        ({"id": "in/absent.mp4"}, 404, "the index has no video 'in/absent.mp4'"),
        ({"id": "../../etc/passwd"}, 404, "the index has no video"),
        ({"id": "in/\u0000"}, 404, "the index has no video"),
        ({"path": "/absent/folder/x.mp4"}, 404, "x.mp4 does not exist"),
        ({"path": "http://127.0.0.1:9/x.mp4"}, 403, "a path is no URL"),
        ({"url": "/etc/passwd"}, 403, "wants an address"),
        ({"url": "http://127.0.0.1:9/x.mp4"}, 403, "HAPVR_ALLOWED_HOSTS"),
        ({"url": "file:///etc/passwd"}, 403, "wanted a path or an http"),
    ],
    ids=str,
)
def test_bad_requests_get_a_sentence(client: Client, asked: dict[str, Any], status: int, said: str) -> None:
    """A status, a code, one line; no traceback and no folder of this machine."""
    answer = client.search(**asked)
    assert (answer.status, set(answer.json)) == (status, {"error", "code"})
    assert said in answer.json["error"]
    assert "Traceback" not in answer.json["error"]
    assert "/folder/" not in answer.json["error"]


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"content-type": "application/json"}, b"{", 400),
        ({"content-type": "application/json"}, b"[" * 50_000, 400),
        ({"content-type": "application/json"}, b" " * 100_000, 413),
        ({"content-type": "application/json"}, b"\xff\xfe", 400),
        ({"content-type": "multipart/form-data; boundary=x"}, b"--x--", 422),
        ({"content-type": "application/octet-stream"}, b"", 400),
    ],
    ids=["cut", "deep", "long", "bytes", "form", "no name"],
)
def test_bad_bodies_get_a_sentence(client: Client, headers: dict[str, str], body: bytes, status: int) -> None:
    answer = client.ask("POST", "/search", body=body, headers=headers)
    assert (answer.status, set(answer.json)) == (status, {"error", "code"})


def test_uploads_that_are_no_use_say_why(client: Client, tmp_path: Path) -> None:
    """Black throughout, empty, no video."""
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "text.mp4").write_text("no video")
    for file, code in (
        (black(tmp_path / "black.mp4"), "no_picture"),
        (tmp_path / "empty.mp4", "empty_file"),
        (tmp_path / "text.mp4", "not_video"),
    ):
        answer = client.upload(file)
        answer = answer if answer.status != 200 else client.get(f"/jobs/{answer.json['job']}")
        assert answer.json["code"] == code, answer.json
        assert "hapvr-upload" not in answer.json["error"]


def test_only_the_allowed_folders_are_read(collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HAPVR_ALLOWED_ROOTS holds for paths; whether a forbidden file exists is not told."""
    allowed = tmp_path / "allowed"
    clip = write_scenes(allowed / "clip.mp4", list(LONG[3:9]))
    (allowed / "link.mp4").symlink_to(collection / "videos" / "short.mp4")
    monkeypatch.setenv("HAPVR_ALLOWED_ROOTS", str(allowed))
    with serving(copied(collection, tmp_path / "served")) as client:
        assert names(client.search(path=str(clip)).json)[0] == "in/long.mp4"
        for path in (collection / "videos" / "short.mp4", allowed / "link.mp4", "/etc/passwd", "/absent/x.mp4"):
            refused = client.search(path=str(path))
            assert refused.status == 403
            assert "HAPVR_ALLOWED_ROOTS" in refused.json["error"]
