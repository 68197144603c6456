"""Searches that a running `hapvr serve` answers: no index and no network is opened here."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead
from json import dumps
from pathlib import Path
from threading import Event, Timer
from typing import IO, Any, Literal, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from pydantic import BaseModel, ValidationError, model_validator

from hapvr.errors import ArgumentError, HapvrError, ServiceError, VideoError
from hapvr.files import file_problem, open_regular
from hapvr.search.match import SearchAnswer, printable
from hapvr.search.options import SearchOptions

TOKEN_VARIABLE = "HAPVR_TOKEN"
"""Names the token of a service that answers only to those who have one."""
REQUEST_TIMEOUT_S = 60.0
"""In which a service must go on with a request, and in which its answer must be there."""
WAIT_S = 20
"""How long a request waits for the end of a search."""
PAUSE_S = 0.1
"""Before the next such request, so that a service that does not wait is not asked all the time."""
MAX_ANSWER_BYTES = 256 * 2**20
"""Of one answer; a match takes about 1 KB."""
JSON_HEADERS = {"content-type": "application/json"}
FILE_HEADERS = {"content-type": "application/octet-stream"}

Body = TypeVar("Body", bound=BaseModel)


class _Search(BaseModel):
    """A search of the service; what else it tells is not needed here."""

    job: str
    status: Literal["waiting", "running", "done", "failed"]
    error: str
    code: str
    answer: SearchAnswer | None

    @model_validator(mode="after")
    def _check_end(self) -> _Search:
        """A search that has ended says what it found, or why it did not."""
        if self.status == "done" and self.answer is None:
            raise ValueError("a search is done and has no answer")
        if self.status == "failed" and not self.error:
            raise ValueError("a search failed and has no error")
        return self


class _Service(BaseModel):
    """What a service takes."""

    max_bytes: int


class _Problem(BaseModel):
    """A request that was refused."""

    error: str
    code: str


@dataclass(frozen=True)
class SearchService:
    """A service, and how it is to search.

    address: its URL
    token: what it knows the caller by; "" where it asks for none
    """

    address: str
    options: SearchOptions
    token: str = ""

    def __post_init__(self) -> None:
        """Raises ArgumentError for what is not the address of a service or a token."""
        if not _is_address(self.address):
            raise ArgumentError(
                f"--service is {self.address!r:.200}; expected http(s)://HOST:PORT, as `hapvr "
                "serve` prints it"
            )
        if not (self.token.isascii() and self.token.isprintable()):
            raise ArgumentError(f"{TOKEN_VARIABLE}: expected printable ASCII characters alone")

    @classmethod
    def at(cls, address: str, options: SearchOptions) -> SearchService:
        """That service, with the token that the environment has. Raises ArgumentError."""
        return cls(address, options, os.environ.get(TOKEN_VARIABLE, ""))

    def answer(self, name: str) -> SearchAnswer:
        """What it finds of a file of this machine, which is sent, or of a URL, which it fetches
        itself.

        Raises:
            VideoError: the query cannot be used.
            ServiceError: the service does not answer.
            ArgumentError: it refuses these options or this token."""
        if "://" in name:
            return self._answer_named(name, {"url": name})
        try:
            file = open_regular(Path(name))
        except OSError as error:
            raise VideoError("missing_file", f"{name}: {file_problem(error)}") from None

        path = f"/search?{urlencode(self._values(name=Path(name).name))}"
        with file:
            num_bytes = os.fstat(file.fileno()).st_size
            if num_bytes > self._max_bytes:
                raise VideoError(
                    "too_large",
                    f"{name} has {num_bytes} bytes; {self.address} takes {self._max_bytes} at most",
                )

            return self._ended(name, self._request("POST", path, _Search, FILE_HEADERS, file))

    @cached_property
    def _max_bytes(self) -> int:
        """Of a file. It is asked before one is sent: who is refused while sending may lose the
        reason with the connection."""
        return self._request("GET", "/index", _Service).max_bytes

    def answer_id(self, video_id: str) -> SearchAnswer:
        """What it finds of a video of its collection. Raises as `answer` does."""
        return self._answer_named(video_id, {"id": video_id})

    def _answer_named(self, name: str, query: Mapping[str, str]) -> SearchAnswer:
        body = dumps(self._values(**query)).encode()
        return self._ended(name, self._request("POST", "/search", _Search, JSON_HEADERS, body))

    def _values(self, **query: str) -> dict[str, Any]:
        """The options and what is searched for, as `POST /search` names them."""
        values: dict[str, Any] = {
            field.name: getattr(self.options, field.name) for field in fields(self.options)
        }
        part = values.pop("part")
        if part is not None:
            values |= {"from": part.start_s, "to": part.end_s}
        values |= query
        return {
            name: printable(value) if isinstance(value, str) else value
            for name, value in values.items()
            if value is not None
        }

    def _ended(self, name: str, search: _Search) -> SearchAnswer:
        """The answer of a search, once it has ended."""
        job = f"/jobs/{quote(search.job, safe='')}"
        try:
            while search.status in ("waiting", "running"):
                time.sleep(PAUSE_S)
                search = self._request("GET", f"{job}?wait_s={WAIT_S}", _Search)
        except KeyboardInterrupt:
            with suppress(HapvrError):  # the caller's wish to end counts, whatever it answers
                self._request("DELETE", job, _Search)
            raise

        if search.answer is None:
            raise VideoError(search.code, search.error)
        return _named(search.answer, printable(name))

    def _request(
        self,
        method: str,
        path: str,
        kind: type[Body],
        headers: Mapping[str, str] | None = None,
        body: bytes | IO[bytes] | None = None,
    ) -> Body:
        """What it answers to one request."""
        sent = dict(headers or {})
        if self.token:
            sent["authorization"] = f"Bearer {self.token}"
        try:
            status, content = self._exchange(method, path, sent, body)
        except (OSError, HTTPException, UnicodeError) as error:  # the last: no name of a host
            hint = "start it with `hapvr serve`, or search without --service"
            if isinstance(error, ConnectionResetError):
                hint = "it broke off; try once more, and see its log"
            raise ServiceError(
                f"service: {self.address} does not answer ({error}); {hint}"
            ) from error

        try:
            if status < 400:
                return kind.model_validate_json(content)
            problem = _Problem.model_validate_json(content)
        except ValidationError as error:
            raise ServiceError(
                f"service: {self.address} answers {method} {path.partition('?')[0]} with HTTP "
                f"{status}, and not as `hapvr serve` of this version does; check the address"
            ) from error

        if status in (400, 401):
            raise ArgumentError(problem.error)
        raise VideoError(problem.code, problem.error)

    def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | IO[bytes] | None
    ) -> tuple[int, bytes]:
        """Status and body of an answer. Raises OSError and HTTPException."""
        parts = urlsplit(self.address)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=REQUEST_TIMEOUT_S)
        try:
            # a file that is refused is not read to its end
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, parts.path.rstrip("/") + path, body, headers)
            with _limited(connection.sock, REQUEST_TIMEOUT_S):
                answer = connection.getresponse()
                content = answer.read(MAX_ANSWER_BYTES + 1)
        finally:
            connection.close()

        if len(content) > MAX_ANSWER_BYTES:
            raise HTTPException(f"its answer has more than {MAX_ANSWER_BYTES} bytes")
        if answer.length:
            raise IncompleteRead(content, answer.length)
        return answer.status, content


@contextmanager
def _limited(opened: socket.socket, limit_s: float) -> Iterator[None]:
    """Holds the reading of an answer, which a socket's own timeout does not end while a byte comes
    now and then. Raises TimeoutError where it takes longer."""
    is_late = Event()

    def end() -> None:
        is_late.set()
        with suppress(OSError):  # it was closed just now
            opened.shutdown(socket.SHUT_RDWR)

    timer = Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, HTTPException):
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()

    if is_late.is_set():
        raise TimeoutError(f"its answer takes more than {limit_s:g} s")


def _is_address(address: str) -> bool:
    """Whether it is a scheme and a host, perhaps with a port and a path."""
    try:
        parts = urlsplit(address)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False

    is_bare = not (parts.username or parts.password or parts.query or parts.fragment)
    is_readable = address.isascii() and address.isprintable() and " " not in address
    is_web = parts.scheme in ("http", "https") and bool(parts.hostname)
    return is_web and has_port and is_bare and is_readable


def _named(answer: SearchAnswer, name: str) -> SearchAnswer:
    """An answer whose query has the name that it was given here: the service knows the last part
    of a file's name alone."""
    matches = tuple(replace(match, query=name) for match in answer.matches)
    return replace(answer, query=name, matches=matches)
