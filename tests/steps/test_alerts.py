"""The outbox against a real HTTP server: nothing is lost, nothing is posted twice, nothing goes
where nobody said."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hapvr.errors import DamagedError, DataError
from hapvr.steps import alerts
from hapvr.steps.alerts import AlertOutbox, deliver_alerts
from hapvr.steps.project import Project
from tests.conftest import CHECKOUT, small_settings, write_settings


class Receiver:
    """A webhook on this machine that remembers what it got. answers: status by number of the
    request; 200 after them."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []
        self.signatures: list[str | None] = []
        self.answers: list[int] = []
        self.wait_s = 0.0
        self.trickle = b""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                status = (
                    receiver.answers[len(receiver.got)]
                    if len(receiver.got) < len(receiver.answers)
                    else 200
                )
                receiver.got.append((self.headers["Idempotency-Key"], body))
                receiver.signatures.append(self.headers["X-Hapvr-Signature-256"])
                time.sleep(receiver.wait_s)
                while receiver.trickle:  # of an answer that does not end
                    self.wfile.write(receiver.trickle)
                    time.sleep(0.1)

                self.send_response(status)
                if status == 302:
                    self.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
                self.end_headers()

            def do_GET(self) -> None:
                receiver.got.append(("GET", self.path))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def ids(self) -> list[str]:
        return [name for name, _ in self.got]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A webhook that listens until the end."""
    webhook = Receiver()
    try:
        yield webhook
    finally:
        webhook.server.shutdown()
        webhook.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as webhook:
        yield webhook


@pytest.fixture
def watching(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Project]:
    """A project that posts to the receiver; given: other constants of the module."""

    def opened(**constants: float) -> Project:
        for name, value in constants.items():
            monkeypatch.setattr(alerts, name, value)
        settings = small_settings(tmp_path, tmp_path / "data")
        webhook = {"url": f"http://127.0.0.1:{receiver.port}/hook"}
        settings["watch"] = {
            "lists": [{"name": "leaked", "path": str(tmp_path)}],
            "webhook": webhook,
        }
        return Project.open(write_settings(tmp_path / "config.yaml", settings), folder=tmp_path)

    return opened


def test_a_message_goes_out_once_for_ever(
    watching: Callable[..., Project], receiver: Receiver
) -> None:
    """In the order in which they came; an id that was ever put is passed over."""
    project = watching()
    outbox = AlertOutbox(project.root)
    assert outbox.put({"one": '{"a": "ä"}', "two": "{}"}) == 2
    assert outbox.put({"two": '{"other": 1}', "three": "{}"}) == 1
    assert deliver_alerts(project).delivered == 3
    assert receiver.got == [("one", '{"a": "ä"}'), ("two", "{}"), ("three", "{}")]
    assert outbox.put({"one": "{}", "two": "{}"}) == 0
    assert deliver_alerts(project).delivered == 0
    assert len(receiver.got) == 3
    assert outbox.counts() == (3, 0)


def test_an_outbox_that_is_in_use_or_damaged_is_named(watching: Callable[..., Project]) -> None:
    """Only of one that is damaged it is said that it may be removed: without it, everything is
    posted again."""
    root = watching(BUSY_S=0.1).root
    outbox = AlertOutbox(root)
    path = root.local_path(alerts.OUTBOX_PLACE)
    outbox.put({"one": "{}"})
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DataError, match=r"locked.*run this again") as caught:
            outbox.put({"two": "{}"})

    assert "remove" not in str(caught.value)
    outbox.check()
    outbox.put({"three": "[1]", "four": "{"})
    outbox.forget(["x"])
    assert [name for name, _ in outbox.due()] == ["one"]
    with pytest.raises(DamagedError, match=r"2 messages are not JSON objects"):
        outbox.check()
    path.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 8)
    with pytest.raises(DamagedError, match=r"restore or remove it, and remove watch_matches/"):
        outbox.check()


def test_what_is_refused_comes_after_the_others(
    watching: Callable[..., Project], receiver: Receiver
) -> None:
    """The first failure stops a delivery; the next one begins with what was tried least."""
    project = watching()
    AlertOutbox(project.root).put({"one": "{}", "two": "{}"})
    receiver.answers = [503]
    first = deliver_alerts(project)
    assert first.delivered == 0
    assert first.waiting == 2
    assert first.problem.endswith("answered 503")
    assert deliver_alerts(project).delivered == 2
    assert receiver.ids == ["one", "two", "one"]


def test_an_answer_that_does_not_end_holds_nothing(
    watching: Callable[..., Project], receiver: Receiver
) -> None:
    """Byte by byte: the whole exchange has one deadline, and the message goes out later."""
    project = watching(TIMEOUT_S=0.5)
    AlertOutbox(project.root).put({"one": "{}"})
    receiver.trickle = b"H"
    began = time.monotonic()
    assert "no answer within 0.5 s" in deliver_alerts(project).problem
    assert time.monotonic() - began < 5
    receiver.trickle = b""
    assert deliver_alerts(project).delivered == 1


def test_no_redirect_is_followed(watching: Callable[..., Project], receiver: Receiver) -> None:
    """A 302 is a refusal; the other address gets nothing."""
    project = watching()
    AlertOutbox(project.root).put({"one": "{}"})
    receiver.answers = [302]
    assert deliver_alerts(project).problem.endswith("answered 302")
    assert receiver.ids == ["one"]


PROGRAM = """
import sys
from pathlib import Path
from hapvr.steps.alerts import AlertOutbox, deliver_alerts
from hapvr.steps.project import Project
project = Project.open(Path(sys.argv[1]), folder=Path(sys.argv[1]).parent)
AlertOutbox(project.root).put({f"event-{number:02d}": "{}" for number in range(40)})
print("put", flush=True)
while deliver_alerts(project).waiting:
    pass
"""


@pytest.mark.slow
def test_kills_lose_nothing_and_repeat_at_most_what_was_under_way(
    watching: Callable[..., Project], receiver: Receiver
) -> None:
    """kill -9 at three moments: every event arrives; only the one that was under way at a kill
    comes again, under its key."""
    project = watching()
    receiver.wait_s = 0.05
    kills = 3
    for number in range(kills + 1):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(project.folder / "config.yaml")],
            stdout=subprocess.PIPE,
            cwd=CHECKOUT,
            env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        )
        process.stdout.readline()
        if number < kills:
            before = len(receiver.got)
            while len(receiver.got) < before + 1 + number and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)

        process.wait(timeout=120)

    assert process.returncode == 0
    wanted = [f"event-{number:02d}" for number in range(40)]
    assert sorted(set(receiver.ids)) == wanted
    assert list(dict.fromkeys(receiver.ids)) == wanted
    assert len(receiver.ids) - len(wanted) <= kills
    assert AlertOutbox(project.root).counts() == (40, 0)
