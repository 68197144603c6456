"""What clients send: values that are checked, bodies bounded in size and time, files in a folder that no crash leaves behind."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hapvr.search import DEFAULT_TOP
from hapvr.search.duplicates import Kind
from hapvr.search.match import Part
from hapvr.serving.refusals import Refusal
from hapvr.steps.duplicates import LEAST_PROBABILITY
from hapvr.steps.searcher import SearchOptions

PREFIX = "hapvr-uploads-"
LOCK = "in-use.lock"
MAX_TOP = 10_000
MAX_JSON_BYTES = 2**16
GRACE_S = 20.0
MIN_BYTES_S = 2**15
UPLOAD_TIMEOUT_S = 600.0

Name = Annotated[str, Field(max_length=4096)]
SomeName = Annotated[str, Field(min_length=1, max_length=4096)]
Count = Annotated[int, Field(ge=1, le=1000)]
Offset = Annotated[int, Field(ge=0)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class QueryOptions(_Request):
    """How to search, with the meanings of `hapvr search`."""

    top: Annotated[int, Field(le=MAX_TOP)] = DEFAULT_TOP
    from_: Annotated[float | None, Field(alias="from")] = None
    to: float | None = None
    at: float | None = None
    min_probability: float = 0.0
    prior: float | None = None
    folder: Name = ""
    segments: bool = True

    def options(self) -> SearchOptions:
        """Raises ArgumentError for values out of range."""
        values = self.model_dump(include={"top", "min_probability", "prior", "folder", "segments"})
        return SearchOptions(part=Part.named(self.at, self.from_, self.to), **values)


class UploadSearch(QueryOptions):
    """name: of the file that is the body; its suffix says whether it is a still picture."""

    name: Name = ""


class NamedSearch(QueryOptions):
    """One of path (a file or still picture of this machine), url, and id (of a video of the collection)."""

    path: SomeName | None = None
    url: SomeName | None = None
    id: SomeName | None = None

    @property
    def query(self) -> str:
        return self.path or self.url or self.id or ""

    @model_validator(mode="after")
    def _check_query(self) -> NamedSearch:
        if sum(query is not None for query in (self.path, self.url, self.id)) != 1:
            raise ValueError("wanted one of path, url and id, or a file as the body of the request")
        return self


class PairOfVideos(_Request):
    """query: an id, or job: the search whose query is meant; reference: an id."""

    query: SomeName | None = None
    job: SomeName | None = None
    reference: SomeName

    @model_validator(mode="after")
    def _check_query(self) -> PairOfVideos:
        if (self.query is None) == (self.job is None):
            raise ValueError("wanted one of query (an id) and job (of a search)")
        return self


class MarkedPair(PairOfVideos):
    """mark: None takes a mark back.

    The SHA-256 of a file is taken for an id, so that every mark of GET /pairs can be taken back. name: what to call the
    query then.
    """

    name: Name | None = None
    mark: Literal["match", "not_a_match"] | None


class DuplicateFilter(_Request):
    """Which groups and pairs are wanted. kind: "" for all. folder: beginning of ids."""

    kind: Kind | Literal[""] = ""
    folder: Name = ""
    min_probability: Annotated[float, Field(ge=LEAST_PROBABILITY, le=1)] = 0.9
    limit: Count = 50
    offset: Offset = 0


class BoundedBody:
    """Middleware that refuses bodies that are too large (JSON above MAX_JSON_BYTES, files above max_bytes), arrive at less than
    MIN_BYTES_S after their first GRACE_S, or take longer than UPLOAD_TIMEOUT_S."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_file = scope["method"] == "POST" and not is_json(headers)
        most = self.max_bytes if is_file else MAX_JSON_BYTES
        begun_s, declared = asyncio.get_running_loop().time(), int(headers.get("content-length", 0))
        size, arrived = 0, False

        async def bounded() -> Message:
            nonlocal size, arrived
            if arrived:  # what follows is that the client goes away
                return await receive()
            message: Message = {}
            if declared <= most:
                try:
                    async with asyncio.timeout_at(begun_s + min(GRACE_S + size / MIN_BYTES_S, UPLOAD_TIMEOUT_S)):
                        message = await receive()
                except TimeoutError:
                    sentence = f"request: its body comes too slowly; at least {MIN_BYTES_S:,} bytes a second are wanted"
                    raise Refusal(408, "upload_timeout", sentence) from None
            size, arrived = size + len(message.get("body", b"")), not message.get("more_body", False)
            if max(declared, size) > most:
                key = "; see serving.max_bytes" if is_file else ""
                raise Refusal(413, "too_large", f"request: its body has more than {most} bytes{key}")
            return message

        await self.app(scope, bounded, send)


def is_json(headers: Headers) -> bool:
    """Whether a request says that its body is JSON."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


@contextmanager
def upload_folder() -> Iterator[Path]:
    """A folder for this service's uploads, which is removed at the end; those of services that were killed are removed first.

    A lock in the folder says that its service lives; the system releases it however the service ends.
    """
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(Timeout, OSError):
            if old.lstat().st_uid == os.getuid() and not old.is_symlink() and (old / LOCK).is_file():
                with FileLock(old / LOCK, timeout=0):
                    shutil.rmtree(old)
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder, FileLock(f"{folder}/{LOCK}"):
        yield Path(folder)


def shown_name(name: str) -> str:
    """The last part of a name, without control characters."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:200] or "query"


def suffix_of(name: str) -> str:
    """The suffix of a file's name if it is a short word, otherwise ""."""
    suffix = Path(name).suffix
    return suffix if re.fullmatch(r"\.[A-Za-z0-9]{1,8}", suffix) else ""


async def receive(request: Request, path: Path) -> None:
    """Write the body of a request to a file. Raises Refusal, and ClientDisconnect where the sender goes away."""
    try:
        with path.open("xb") as file:
            async for chunk in request.stream():
                await run_in_threadpool(file.write, chunk)
    except OSError as error:
        sentence = f"upload: it cannot be stored ({error.strerror}); free some space for temporary files"
        raise Refusal(507, "disk_full", sentence) from error
