"""Clients that send too much, stop half way, or all ask at once: others are answered, nothing is left behind."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.scorer.bundles import write_scenes
from tests.serving.served import Answer, Client, serving
from tests.stages.search_projects import LONG, copied

HEAD = "POST /search?name=a.mp4 HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/octet-stream\r\n{size}\r\n\r\n"
MAX_BYTES = 300_000
CHUNK = b"10000\r\n" + bytes(0x10000) + b"\r\n"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where uploads lie."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@contextmanager
def sending(client: Client, size: str) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
        connection.sendall(HEAD.format(port=client.port, size=size).encode())
        yield connection


def soon(condition: Callable[[], bool]) -> bool:
    """Whether a condition comes true within ten seconds."""
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_uploads_have_a_size_limit(collection: Path, tmp_path: Path, temporary: Path) -> None:
    """10 GB are refused by what the header says, and by what arrives where it says nothing; no more than the limit is kept."""
    with serving(copied(collection, tmp_path, **{"serving.max_bytes": MAX_BYTES})) as client:
        with sending(client, "content-length: 10000000000") as connection:
            answer = connection.recv(65536)
        assert b" 413 " in answer.splitlines()[0]
        assert b"serving.max_bytes" in answer
        sent = 0
        with sending(client, "transfer-encoding: chunked") as connection:
            try:
                while sent < 10**10:
                    connection.sendall(CHUNK)
                    sent += len(CHUNK)
                    assert sum(path.stat().st_size for path in temporary.rglob("*") if path.is_file()) <= MAX_BYTES
            except (ConnectionError, FileNotFoundError):
                pass
        assert sent < 10**9
        assert soon(lambda: os.listdir(temporary) == [])
        assert client.upload(write_scenes(tmp_path / "clip.mp4", list(LONG[3:9]))).status == 200


def test_a_browser_that_stops_half_way_leaves_nothing(client: Client, temporary: Path) -> None:
    """Its file goes, and its place among those that wait is free again."""
    with sending(client, "content-length: 1000000") as connection:
        connection.sendall(bytes(100_000))
        assert soon(lambda: len(os.listdir(temporary)) == 1)
        assert client.get("/health").json["busy"] == 1
    assert soon(lambda: os.listdir(temporary) == [])
    assert soon(lambda: client.get("/health").json["busy"] == 0)


def test_a_browser_that_sends_slowly_is_cut_off(collection: Path, tmp_path: Path, temporary: Path) -> None:
    """A sender that never ends holds no place for ever."""
    settings = {"service.upload_timeout_s": 3, "service.searches_at_once": 1, "service.max_waiting": 0}
    with serving(copied(collection, tmp_path, **settings)) as client:
        with sending(client, "content-length: 1000000") as connection:
            connection.sendall(bytes(1000))
            assert soon(lambda: client.get("/health").json["busy"] == 1)
            refused = client.search(id="in/short.mp4")  # the only place is taken by the upload
            assert (refused.status, refused.json["code"]) == (503, "busy")
            assert int(refused.headers["retry-after"]) >= 1
            assert b" 408 " in connection.recv(65536).splitlines()[0]
        assert client.search(id="in/short.mp4").status == 200
    assert os.listdir(temporary) == []


def test_json_that_never_arrives_holds_no_place(
    collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others search meanwhile, and after a while the sender is cut off."""
    monkeypatch.setattr("hapvr.serving.requests.JSON_TIMEOUT_S", 5.0)
    head = "{} HTTP/1.1\r\nhost: 127.0.0.1:{}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
    settings = {"service.searches_at_once": 1, "service.max_waiting": 0}
    with serving(copied(collection, tmp_path, **settings)) as client:
        for request in ("POST /search", "PATCH /pairs"):
            with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
                connection.sendall(head.format(request, client.port).encode())
                assert client.search(id="in/short.mp4").status == 200
                assert b" 408 " in connection.recv(65536).splitlines()[0]


def test_json_has_a_size_limit(client: Client) -> None:
    """Wherever it is sent to."""
    for method, path in (("POST", "/search"), ("PATCH", "/pairs")):
        answer = client.ask(method, path, body={"query": "x" * 70_000})
        assert (answer.status, answer.json["code"]) == (413, "too_large")


@pytest.mark.slow
def test_32_searches_at_once(client: Client) -> None:
    """All are answered, and the health of the service is told meanwhile without a wait for them."""
    ids = [row["id"] for row in client.get("/videos").json["videos"]]
    slowest, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.is_set():
            began = time.monotonic()
            assert client.get("/health").status == 200
            slowest[0] = max(slowest[0], time.monotonic() - began)

    with ThreadPoolExecutor(33) as pool:
        watching = pool.submit(watch)
        answers = list(pool.map(lambda number: client.search(id=ids[number % len(ids)]), range(32)))
        ended.set()
        watching.result()
    assert [answer.status for answer in answers] == [200] * 32
    assert slowest[0] < 5
    assert client.get("/health").json["busy"] == 0


def test_more_than_can_wait_are_refused(collection: Path, tmp_path: Path) -> None:
    """503 with a time to come back for some, answers for the others; and a job that is ended gives its place back."""
    settings = {"service.searches_at_once": 1, "service.max_waiting": 3, "service.answer_within_s": 0}
    with serving(copied(collection, tmp_path, **settings)) as client, ThreadPoolExecutor(16) as pool:

        def ask(_: int) -> Answer:
            return client.ask("POST", "/search", body={"id": "in/long.mp4"})

        first = list(pool.map(ask, range(16)))
        taken = [answer for answer in first if answer.status in (200, 202)]
        refused = [answer for answer in first if answer.status == 503]
        assert len(taken) >= 4
        assert len(taken) + len(refused) == 16
        assert refused
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        for answer in taken[1:]:
            assert client.ask("DELETE", f"/jobs/{answer.json['job']}").status == 200
        assert client.ended(taken[0]).json["status"] == "done"
        assert soon(lambda: client.get("/health").json["busy"] == 0)


def test_a_search_has_a_deadline(collection: Path, tmp_path: Path) -> None:
    """A search that takes longer ends, and says which setting decides."""
    with serving(copied(collection, tmp_path, **{"service.search_timeout_s": 0.001})) as client:
        answer = client.search(id="in/long.mp4")
        assert (answer.status, answer.json["code"]) == (504, "timeout")
