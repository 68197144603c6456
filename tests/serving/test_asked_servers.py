"""`hapvr search --service` at servers that are no service, do not answer, or never come to an
end."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from hapvr.commands.search_service import SearchService
from hapvr.search.options import SearchOptions
from tests.commands.conftest import called


class NoService(BaseHTTPRequestHandler):
    """A server of something else."""

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        self.send_response(int(self.path.split("/")[1]))
        self.end_headers()
        self.wfile.write(b"<html>a page</html>")


@pytest.fixture(scope="module")
def other_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), NoService) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(60)


@pytest.mark.parametrize("status", [200, 302, 404, 500])
def test_another_server_is_told_from_a_service(other_server: str, status: int) -> None:
    """No redirect is followed, which could carry a file and a token elsewhere."""
    outcome = called("search", "--id", "a", "--service", f"{other_server}/{status}")
    assert outcome.code == 1
    assert f"with HTTP {status}, and not as `hapvr serve`" in outcome.error


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://a..b", f"http://{'a' * 70}"])
def test_a_service_that_does_not_answer_is_named(address: str) -> None:
    outcome = called("search", "--id", "a", "--service", address)
    assert outcome.code == 1
    assert f"{address} does not answer" in outcome.error
    assert "start it with `hapvr serve`" in outcome.error


STATE = {"job": "j", "status": "running", "error": "", "code": "", "answer": None}
FOUND = {"query": "a", "matches": []}
PAUSE = threading.Event()
"""Never set: waiting for it is sleeping."""


def state(**values: Any) -> bytes:
    """The state of a search, as a service sends it."""
    return json.dumps(STATE | values).encode()


class Scripted(BaseHTTPRequestHandler):
    """A server that says what its test wants."""

    def say(self) -> None:
        self.server.requests += 1
        self.server.script(self)

    do_POST = do_GET = do_DELETE = say

    def send(self, body: bytes, *, length: int | None = None) -> None:
        """A whole answer, unless another length is claimed."""
        self.send_response(200)
        self.send_header("content-length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)


class ScriptedServer(ThreadingHTTPServer):
    """How many requests came, and what answers them."""

    daemon_threads = True
    block_on_close = False
    requests = 0
    script: Callable[[Scripted], None]


@contextmanager
def scripted(script: Callable[[Scripted], None]) -> Iterator[tuple[ScriptedServer, str]]:
    """A server with this script, and its address."""
    with ScriptedServer(("127.0.0.1", 0), Scripted) as server:
        server.script = script
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(60)


def drip(server: Scripted) -> None:
    """A byte now and then, without an end."""
    with suppress(OSError):
        server.send(b"", length=10**6)
        while True:
            server.wfile.write(b" ")
            PAUSE.wait(0.05)


def continue_without_end(server: Scripted) -> None:
    """Says that it goes on, and does not."""
    with suppress(OSError):
        while True:
            server.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            PAUSE.wait(0.05)


@pytest.mark.parametrize("script", [drip, continue_without_end])
def test_a_server_that_does_not_come_to_an_end_is_left(
    script: Callable[[Scripted], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hapvr.commands.search_service.REQUEST_TIMEOUT_S", 0.5)
    with scripted(script) as (_, address):
        outcome = called("search", "--id", "a", "--service", address)
    assert outcome.code == 1
    assert "takes more than 0.5 s" in outcome.error


@pytest.mark.parametrize(
    ("body", "length", "error"),
    [
        (b" " * 5000, 5000, "has more than 1000 bytes"),
        (b" ", 10**17, "IncompleteRead"),
        (state(status="done"), None, "not as `hapvr serve`"),
        (state(status="failed"), None, "not as `hapvr serve`"),
        (state(status="odd"), None, "not as `hapvr serve`"),
    ],
    ids=["large", "cut off", "no answer", "no error", "status"],
)
def test_an_answer_that_no_service_gives_ends_in_a_sentence(
    body: bytes, length: int | None, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bounded memory."""
    monkeypatch.setattr("hapvr.commands.search_service.MAX_ANSWER_BYTES", 1000)
    with scripted(lambda server: server.send(body, length=length)) as (_, address):
        outcome = called("search", "--id", "a", "--service", address)
    assert outcome.code == 1
    assert error in outcome.error


def test_answers_that_came_before_a_service_went_away_are_shown() -> None:
    """The other queries are rows that say so, and are not asked any more."""

    def go_away(server: Scripted) -> None:
        if server.server.requests == 1:
            server.send(state(status="done", answer=FOUND))

    with scripted(go_away) as (server, address):
        words = ["search", "--id", "a", "--id", "b", "--id", "c", "--json"]
        outcome = called(*words, "--service", address)
        assert server.requests == 2
    assert outcome.code == 1
    errors = [query["error"] for query in outcome.json["queries"]]
    assert errors[0] == ""
    assert ["does not answer" in error for error in errors] == [False, True, True]


def test_an_interrupt_ends_the_command_whatever_the_service_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has forgotten the search, for example."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    def forget(server: Scripted) -> None:
        if server.command == "DELETE":
            server.send_response(404)
            server.end_headers()
            server.wfile.write(b'{"error": "gone", "code": "gone"}')
        else:
            server.send(state())

    interrupted = SimpleNamespace(sleep=interrupt)  # for this module alone
    monkeypatch.setattr("hapvr.commands.search_service.time", interrupted)
    with scripted(forget) as (_, address):
        service = SearchService.at(address, SearchOptions())
        with pytest.raises(KeyboardInterrupt):
            service.answer_id("a")
