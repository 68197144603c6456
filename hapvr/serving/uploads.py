"""Bodies of requests: bounded in size and time; files that are sent lie in a folder that no crash leaves behind."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hapvr.errors import VideoError
from hapvr.serving.refusals import Refusal

PREFIX = "hapvr-uploads-"
LOCK = "in-use.lock"
MAX_NAME = 200
MAX_JSON_BYTES = 2**16
JSON_TIMEOUT_S = 20.0
UPLOAD_TIMEOUT_S = 600.0
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}")


class BoundedBody:
    """Middleware that refuses bodies that are too large or arrive too slowly: JSON within MAX_JSON_BYTES and JSON_TIMEOUT_S,
    files within max_bytes and UPLOAD_TIMEOUT_S."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_file = scope["method"] == "POST" and not is_json(headers)
        most, limit_s = (self.max_bytes, UPLOAD_TIMEOUT_S) if is_file else (MAX_JSON_BYTES, JSON_TIMEOUT_S)
        end_s, declared = asyncio.get_running_loop().time() + limit_s, int(headers.get("content-length", 0))
        size, arrived = 0, False

        async def bounded() -> Message:
            nonlocal size, arrived
            if arrived:  # what follows is that the client goes away
                return await receive()
            message: Message = {}
            if declared <= most:
                try:
                    async with asyncio.timeout_at(end_s):
                        message = await receive()
                except TimeoutError:
                    raise Refusal(408, "upload_timeout", f"request: its body takes longer than {limit_s:g} s") from None
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
    return "".join(letter for letter in last if letter.isprintable())[:MAX_NAME] or "query"


@contextmanager
def temporary_file(folder: Path, name: str) -> Iterator[Path]:
    """The place of a file with the suffix of `name`; what is there is removed with the context."""
    suffix = Path(name).suffix
    path = folder / (secrets.token_hex(8) + (suffix if _SUFFIX.fullmatch(suffix) else ""))
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


async def receive(request: Request, path: Path, *, name: str) -> None:
    """Write the body of a request to a file.

    Raises VideoError `empty_file`, Refusal `disk_full`, and starlette's ClientDisconnect where the sender goes away.
    """
    try:
        with path.open("xb", buffering=0) as file:
            async for chunk in request.stream():
                await run_in_threadpool(file.write, chunk)
            if not file.tell():
                raise VideoError(
                    "empty_file", f"upload: {name} is empty; send the file itself as the body of the request"
                )
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise Refusal(
            507, "disk_full", f"upload: there is no space for {name}; free some for temporary files"
        ) from error
