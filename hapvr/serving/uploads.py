"""A file that a browser sends: kept for as long as its search takes, never larger or slower than allowed."""

from __future__ import annotations

import asyncio
import errno
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from hapvr.errors import VideoError
from hapvr.serving.refusals import DiskFullError

PREFIX = "hapvr-upload-"
MAX_NAME = 200
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}")


@dataclass(frozen=True, eq=False)
class Upload:
    """name: what the sender calls the file, without folders. path: where it is; `remove` deletes it."""

    name: str
    path: Path
    folder: tempfile.TemporaryDirectory[str]

    def remove(self) -> None:
        self.folder.cleanup()


def shown_name(name: str) -> str:
    """The last part of a name, without control characters."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:MAX_NAME] or "query"


async def receive(request: Request, name: str, *, max_bytes: int, timeout_s: float) -> Upload:
    """Write the body of a request to a temporary file.

    Raises VideoError `too_large`, also for a body whose size is not said before, `empty_file` and `upload_timeout`,
    DiskFullError, and starlette's ClientDisconnect where the sender goes away. Nothing is left behind then.
    """
    shown = shown_name(name)
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > max_bytes:
        raise _too_large(shown, max_bytes)
    suffix = Path(shown).suffix
    folder = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
    upload = Upload(shown, Path(folder.name) / f"query{suffix if _SUFFIX.fullmatch(suffix) else ''}", folder)
    try:
        async with asyncio.timeout(timeout_s):
            size = await _write(request, upload, max_bytes)
        if not size:
            raise VideoError("empty_file", f"upload: {shown} is empty; send the file itself as the body of the request")
    except BaseException as error:
        upload.remove()
        if isinstance(error, TimeoutError):
            raise VideoError(
                "upload_timeout", f"upload: {shown} did not arrive within {timeout_s:g} s; see service.upload_timeout_s"
            ) from None
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFullError(
                f"upload: there is no space for {shown}; free some where temporary files are"
            ) from error
        raise
    return upload


async def _write(request: Request, upload: Upload, max_bytes: int) -> int:
    size = 0
    with upload.path.open("wb") as file:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                raise _too_large(upload.name, max_bytes)
            await run_in_threadpool(file.write, chunk)
    return size


def _too_large(name: str, max_bytes: int) -> VideoError:
    return VideoError("too_large", f"upload: {name} has more than {max_bytes} bytes; see serving.max_bytes")
