"""Clients that send too much, stop half way, or all ask at once: others are answered, nothing is
left behind."""

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from hapvr.errors import VideoError
from hapvr.scorer import requests
from hapvr.scratch import LOCK, scratch_folder
from hapvr.search.match import SearchAnswer
from hapvr.serving import uploads
from hapvr.serving.jobs import KEPT_JOBS, Job, SearchJobs
from hapvr.serving.refusals import without_paths
from hapvr.serving.server import MAX_CONNECTIONS
from hapvr.steps.searcher import SearchOptions
from tests.scorer.bundles import write_scenes
from tests.serving.raw_requests import HEAD, sending, soon
from tests.serving.served import Answer, Client, serving
from tests.steps.search_projects import LONG, copied

WORDS = (
    "..",
    "%2e%2e%2fetc%2fpasswd",
    "in/%00",
    "in/%0a",
    "in/%ff",
    "%1b%5b31m",
    "a" * 20_000,
    "%ed%a0%80",
    "%25",
)
PLACES = (
    "/media/{}",
    "/thumbnails/{}",
    "/videos/{}",
    "/jobs/{}",
    "/{}",
    "/videos?contains={}",
    "/duplicates?folder={}",
    "/pairs/matrix?query=in/short.mp4&reference={}",
    "/thumbnails/in/short.mp4?second={}",
    "/jobs/{}/explanation?reference=in/short.mp4",
)
RANGES = (
    "bytes=5-2",
    "bytes=99999999-",
    "bytes=-0",
    "bytes=a-b",
    "bytes",
    "lines=0-1",
    "bytes=0-1,99999999-",
    "bytes=\xff-",
)
BODIES = (
    b"",
    b"{",
    b"[" * 9000,
    b'{"id": "\\ud800"}',
    b"\xff",
    b'{"id": 1' + b"0" * 9000 + b"}",
    b'{"url": "http://[::1"}',
    b'{"path": "pipe:0"}',
    b'{"url": "file:///etc/passwd"}',
    b'{"path": "\\u0000"}',
)
FILES = ("a.png", "%00", "..%2f..%2fa.mp4", "a" * 300 + ".mp4")
ODD_HEADERS = {"host": "\xff", "origin": "a" * 9000, "cookie": "a" * 20_000, "expect": "x"}
MAX_BYTES = 300_000
CHUNK = b"10000\r\n" + bytes(0x10000) + b"\r\n"


@pytest.fixture(scope="module")
def narrow(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A service that takes in small files alone."""
    folder = tmp_path_factory.mktemp("narrow")
    with serving(copied(collection, folder, **{"serving.max_bytes": MAX_BYTES})) as client:
        yield client


def test_a_header_that_names_too_many_bytes_is_refused(narrow: Client) -> None:
    """With the setting that says so."""
    with sending(narrow, "content-length: 10000000000") as connection:
        pieces = iter(lambda: connection.recv(65536), b"")
        answer = b"".join(pieces)  # until the service hangs up
    assert b" 413 " in answer.splitlines()[0]
    assert b"serving.max_bytes" in answer


def test_a_form_is_no_file(narrow: Client) -> None:
    """Its digest would be another one than its file's."""
    form = HEAD.replace("application/octet-stream", "multipart/form-data; boundary=X")
    with sending(narrow, "content-length: 0", form) as connection:
        assert b" 415 " in connection.recv(65536)


def test_no_more_than_the_limit_is_kept_of_what_does_not_end(narrow: Client) -> None:
    """Where the header says nothing of its size; others are answered."""
    sent = 0
    with (
        sending(narrow, "transfer-encoding: chunked") as connection,
        suppress(ConnectionError, FileNotFoundError),
    ):
        while sent < 10**10:
            connection.sendall(CHUNK)
            sent += len(CHUNK)
            kept = sum(path.stat().st_size for path in narrow.service.uploads.iterdir())
            assert kept <= MAX_BYTES

    assert sent < 10**9
    assert soon(lambda: narrow.uploads == [])


@pytest.mark.slow
def test_what_is_within_the_limit_is_searched(narrow: Client, tmp_path: Path) -> None:
    assert narrow.upload(write_scenes(tmp_path / "clip.mp4", list(LONG[3:9]))).status == 200


def test_a_browser_that_stops_half_way_leaves_nothing(client: Client) -> None:
    """Its file goes, and its place among those that wait is free again."""
    with sending(client, "content-length: 1000000") as connection:
        connection.sendall(bytes(100_000))
        assert soon(lambda: len(client.uploads) == 1)
        assert client.get("/health").json["busy"] == 1

    assert soon(lambda: client.uploads == [])
    assert soon(lambda: client.get("/health").json["busy"] == 0)


@pytest.mark.parametrize("prefix", [uploads.PREFIX, requests.PREFIX])
def test_videos_of_a_process_that_was_killed_are_removed(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once there are others; those of a process that runs stay, and so does what looks alike and is
    not ours."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed = tmp_path / f"{prefix}killed"
    foreign = tmp_path / f"{prefix}foreign"
    for folder in (killed, foreign):
        folder.mkdir()
        (folder / "film.mp4").touch()

    (killed / LOCK).touch()
    with scratch_folder(prefix) as first, scratch_folder(prefix) as second:
        assert {path.name for path in tmp_path.iterdir()} == {foreign.name, first.name, second.name}
    assert list(tmp_path.iterdir()) == [foreign]


Request = tuple[str, str, bytes | None, dict[str, str]]
"""Method, address, body and headers."""
JSON = {"content-type": "application/json"}
HOSTILE: dict[str, list[Request]] = {
    "words in addresses": [
        ("GET", place.format(word), None, {}) for place in PLACES for word in WORDS
    ],
    "ranges": [
        (method, "/media/in/short.mp4", None, {"range": text})
        for method in ("GET", "HEAD")
        for text in RANGES
    ],
    "methods": [
        (method, "/search", None, {}) for method in ("HEAD", "PUT", "TRACE", "PROPFIND", "OPTIONS")
    ],
    "headers": [("GET", "/health", None, {name: value}) for name, value in ODD_HEADERS.items()],
    "a web socket": [("GET", "/health", None, {"upgrade": "websocket", "connection": "upgrade"})],
    "bodies of searches": [("POST", "/search", body, JSON) for body in BODIES],
    "bodies of marks": [("PATCH", "/pairs", body, JSON) for body in BODIES],
    "files": [
        ("POST", f"/search?name={name}", b"no video", {"content-type": "video/mp4"})
        for name in FILES
    ],
}
"""Requests that `tests/fuzz` cannot draw from the service's own document."""


def answered(
    client: Client, method: str, address: str, body: bytes | None, headers: dict[str, str]
) -> Answer:
    """The answer to a request that is sent as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)
    try:
        connection.putrequest(method, address, skip_host="host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value.encode("latin-1"))
        if body is not None:
            connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return Answer(
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            answer.read(),
        )
    finally:
        connection.close()


Answered = dict[str, list[tuple[Request, Answer]]]


@pytest.fixture(scope="module")
def hostile_answers(client: Client) -> Answered:
    """The answers to all of HOSTILE; those of searches at their end."""
    answers: Answered = {}
    for kind, requests_of_kind in HOSTILE.items():
        answers[kind] = []
        for request in requests_of_kind:
            answer = answered(client, *request)
            if answer.status == 202:
                answer = client.ended(answer)
            answers[kind].append((request, answer))

    return answers


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_request_makes_the_service_fail(hostile_answers: Answered, kind: str) -> None:
    failures = [
        (request, answer) for request, answer in hostile_answers[kind] if answer.status >= 500
    ]
    assert not failures


def answers_with(answers: Answered, kind: str, text: str) -> list[tuple[Request, Answer]]:
    """Those of a kind whose body holds a text."""
    return [(request, answer) for request, answer in answers[kind] if text.encode() in answer.body]


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_answer_tells_of_the_code(hostile_answers: Answered, kind: str) -> None:
    assert not answers_with(hostile_answers, kind, "Traceback")


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_answer_tells_a_place_of_this_machine(
    hostile_answers: Answered, collection: Path, kind: str
) -> None:
    assert not answers_with(hostile_answers, kind, str(collection))


def is_one_sentence(answer: Answer) -> bool:
    """Whether the body of a refusal is that, and a code."""
    error = answer.json["error"]
    return (
        set(answer.json) == {"error", "code", "plain"}
        and error.isprintable()
        and 10 < len(error) <= 1000
    )


@pytest.mark.parametrize("kind", sorted(HOSTILE.keys() - {"ranges"}))
def test_every_refusal_is_one_sentence(hostile_answers: Answered, kind: str) -> None:
    """Ranges are refused by a status alone, and the answer to HEAD has no body."""
    refusals = [
        (request, answer)
        for request, answer in hostile_answers[kind]
        if answer.status >= 400 and request[0] != "HEAD"
    ]
    wrong = [(request, answer) for request, answer in refusals if not is_one_sentence(answer)]
    assert not wrong


def test_no_hostile_request_leaves_a_mark(hostile_answers: Answered, client: Client) -> None:
    assert hostile_answers
    assert client.get("/pairs").json["marks"] == []


def test_after_hostile_requests_others_are_answered(
    hostile_answers: Answered, client: Client
) -> None:
    assert hostile_answers
    assert client.search(id="in/short.mp4").status == 200


def test_slow_uploads_end(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that comes byte by byte is refused as soon as it is too slow, whatever its length."""
    monkeypatch.setattr("hapvr.serving.uploads.GRACE_S", 0.5)
    with sending(client, "content-length: 1000000") as connection:
        connection.sendall(b"x")
        assert b" 408 " in connection.recv(65536)

    assert soon(lambda: client.get("/health").json["busy"] == 0)


def test_silent_connections_lock_nobody_out(client: Client) -> None:
    """More than the service keeps: nothing sent, half a head, half a body. Others are answered at
    once."""
    head = HEAD.format(port=client.port, size="content-length: 9").encode()
    with ExitStack() as held:
        for number in range(MAX_CONNECTIONS + 20):
            connection = held.enter_context(
                socket.create_connection(("127.0.0.1", client.port), timeout=60)
            )
            connection.sendall(
                (b"", head[:50], head.replace(b"octet-stream", b"x") + b"x")[number % 3]
            )

        for _ in range(3):
            assert client.get("/health").status == 200


def test_clients_that_wait_lock_nobody_out(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than the service keeps, for a search whose turn does not come."""
    monkeypatch.setattr("hapvr.serving.searches.ANSWER_WITHIN_S", 0)
    monkeypatch.setattr("hapvr.serving.jobs.SEARCHES_AT_ONCE", 0)
    job = client.ask("POST", "/search", body={"id": "in/long.mp4"}).json["job"]
    request = (
        f"GET /jobs/{job}?wait_s=20 HTTP/1.1\r\nhost: 127.0.0.1:{client.port}\r\n\r\n".encode()
    )
    with ExitStack() as held:
        for _ in range(2 * MAX_CONNECTIONS + 20):
            connection = held.enter_context(
                socket.create_connection(("127.0.0.1", client.port), timeout=60)
            )
            connection.sendall(request)

        for place in ("/health", "/videos", f"/jobs/{job}"):
            assert client.ask("GET", place, sender="127.0.0.2").status == 200

    assert client.ask("DELETE", f"/jobs/{job}", sender="127.0.0.2").status == 200
    assert soon(lambda: not client.service.answering.total())


class Searches:
    """Searches that end when a test lets them, and the order in which they began."""

    def __init__(self) -> None:
        self.jobs = SearchJobs()
        self.order: list[str] = []
        self.go: dict[str, threading.Event] = {}

    def ask(self, name: str, *, address: str, waits: bool = False) -> Job:
        """A search of an address; one that is named `wrong` fails. waits: it ends once `go` of its
        name is set."""
        if waits:
            self.go[name] = threading.Event()
        held = ExitStack()
        job = Job(name, SearchOptions(), address=held.enter_context(self.jobs.place(address)))
        self.jobs.start(job, self._work, release=held.close)
        return job

    def _work(self, job: Job) -> SearchAnswer:
        self.order.append(job.name)
        if job.name in self.go:
            self.go[job.name].wait(60)
        if job.name == "wrong":
            raise VideoError("no_frames", "it has none")
        return SearchAnswer(query=job.name)

    async def have_begun(self, count: int) -> None:
        while len(self.order) < count:
            await asyncio.sleep(0.01)

    def let_all_end(self) -> None:
        for event in self.go.values():
            event.set()


def test_turns_are_shared() -> None:
    """Of four searches of one address only one runs while another address's waits."""

    async def order_of_beginning() -> list[str]:
        searches = Searches()
        asked = [searches.ask(name, address="a", waits=True) for name in "abcd"]
        await searches.have_begun(2)
        beside = searches.ask("other", address="b")
        searches.go["a"].set()  # c waits for longer, but b still runs
        await beside.task
        order = list(searches.order)
        searches.let_all_end()
        await asyncio.gather(*(job.task for job in asked))
        return order

    order = asyncio.run(order_of_beginning())
    assert set(order[:2]) == {"a", "b"}
    assert order[2] == "other"


def test_many_searches_that_fail_leave_the_answers_of_others() -> None:
    async def ask() -> tuple[bool, set[str]]:
        searches = Searches()
        job = searches.ask("right", address="a")
        await job.task
        statuses = set()
        for _ in range(KEPT_JOBS + 5):
            failed = searches.ask("wrong", address="c")
            await asyncio.wait([failed.task])
            statuses.add(failed.status)

        return searches.jobs.get(job.id) is job, statuses

    is_kept, statuses = asyncio.run(ask())
    assert statuses == {"failed"}
    assert is_kept


@pytest.mark.parametrize("place", ["/data/sp ace/My Col/root", "/data/root"])
def test_no_folder_of_this_machine_is_told(place: str) -> None:
    message = without_paths(
        f"search: '{place}/a b.mp4' and {place}/index.json (see {place}/x) are damaged; run "
        "it again"
    )
    assert message == "search: 'a b.mp4' and index.json (see x) are damaged; run it again"


def test_a_message_of_many_paths_is_told_at_once() -> None:
    """The pattern alone would take an hour."""
    assert without_paths("/ " * 495 + "\U000e0001" * 200_000)


def test_a_search_has_a_deadline(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that takes longer ends."""
    monkeypatch.setattr("hapvr.serving.jobs.SEARCH_TIMEOUT_S", 0.001)
    answer = client.search(id="in/long.mp4")
    assert answer.status == 504
    assert answer.json["code"] == "timeout"
