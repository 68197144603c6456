"""What clients send: bodies bounded in size and time, files in a folder that no crash leaves
behind."""

import asyncio
import os
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

from hapvr.serving.refusals import Refusal

PREFIX = "hapvr-uploads-"
LOCK = "in-use.lock"
MAX_JSON_BYTES = 2**16
GRACE_S = 20.0
MIN_BYTES_S = 2**15
UPLOAD_TIMEOUT_S = 600.0

FILE_BODY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
"""Documents a body that is a file."""


def bounded_body(app: ASGIApp, *, max_bytes: int) -> ASGIApp:
    """Refuses bodies that are too large (JSON above MAX_JSON_BYTES, files above max_bytes), arrive
    at less than MIN_BYTES_S after their first GRACE_S, or take longer than UPLOAD_TIMEOUT_S."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_file = scope["method"] == "POST" and not is_json(headers)
        most = max_bytes if is_file else MAX_JSON_BYTES
        begun_s, declared = asyncio.get_running_loop().time(), int(headers.get("content-length", 0))
        size, arrived = 0, False

        async def bounded() -> Message:
            nonlocal size, arrived
            if arrived:  # what follows is that the client goes away
                return await receive()
            message: Message = {}
            if declared <= most:
                try:
                    async with asyncio.timeout_at(
                        begun_s + min(GRACE_S + size / MIN_BYTES_S, UPLOAD_TIMEOUT_S)
                    ):
                        message = await receive()
                except TimeoutError:
                    sentence = (
                        f"request: its body comes too slowly; at least "
                        f"{MIN_BYTES_S:,} bytes a second are wanted"
                    )
                    raise Refusal(408, "upload_timeout", sentence) from None
            size, arrived = (
                size + len(message.get("body", b"")),
                not message.get("more_body", False),
            )
            if max(declared, size) > most:
                key = "; see serving.max_bytes" if is_file else ""
                raise Refusal(
                    413, "too_large", f"request: its body has more than {most} bytes{key}"
                )
            return message

        await app(scope, bounded, send)

    return answer


def is_json(headers: Headers) -> bool:
    """Whether a request says that its body is JSON."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


@contextmanager
def upload_folder() -> Iterator[Path]:
    """A folder for this service's uploads, which is removed at the end; those of services that were
    killed are removed first. A lock in the folder says that its service lives; the system releases
    it however the service ends."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(Timeout, OSError):
            if (
                old.lstat().st_uid == os.getuid()
                and not old.is_symlink()
                and (old / LOCK).is_file()
            ):
                with FileLock(old / LOCK, timeout=0):
                    shutil.rmtree(old)
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder,
        FileLock(f"{folder}/{LOCK}"),
    ):
        yield Path(folder)


def shown_name(name: str) -> str:
    """The last part of a name, without control characters."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:200] or "query"


async def receive(request: Request, path: Path) -> None:
    """Write the body of a request to a file. Raises Refusal, and ClientDisconnect where the sender
    goes away."""
    if request.headers.get("content-type", "").strip().lower().startswith("multipart/"):
        raise Refusal(415, "form", "upload: its body is a form; send the bytes of the file alone")
    try:
        with path.open("xb") as file:
            async for chunk in request.stream():
                await run_in_threadpool(file.write, chunk)
    except OSError as error:
        sentence = (
            f"upload: it cannot be stored ({error.strerror}); free some space for temporary files"
        )
        raise Refusal(507, "disk_full", sentence) from error
