"""What clients send: bodies bounded in size and time, files in a folder that no crash leaves
behind."""

import asyncio
from contextlib import AbstractContextManager
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hapvr.scratch import scratch_folder
from hapvr.serving.refusals import Refusal

PREFIX = "hapvr-uploads-"
MAX_JSON_BYTES = 2**16
GRACE_S = 20.0
MIN_BYTES_S = 2**15
UPLOAD_TIMEOUT_S = 600.0
MAX_NAME = 200
MAX_SUFFIX = 9

FILE_BODY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
"""Documents a body that is a file."""


def bounded_body(app: ASGIApp, *, max_bytes: int) -> ASGIApp:
    """Refuses bodies that are too large (JSON above MAX_JSON_BYTES, files above max_bytes), arrive
    at less than MIN_BYTES_S after their first GRACE_S, or take longer than UPLOAD_TIMEOUT_S."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            receive = _Body(scope, receive, max_bytes=max_bytes).receive
        await app(scope, receive, send)

    return answer


class _Body:
    """The body of one request, as it arrives."""

    def __init__(self, scope: Scope, receive: Receive, *, max_bytes: int) -> None:
        headers = Headers(scope=scope)
        self._receive = receive
        self._is_file = scope["method"] == "POST" and not is_json(headers)
        self._max_bytes = max_bytes if self._is_file else MAX_JSON_BYTES
        self._begun_s = asyncio.get_running_loop().time()
        self._size = int(headers.get("content-length", 0))
        """As declared, or as arrived where that is more."""
        self._num_arrived = 0
        self._is_whole = False

    async def receive(self) -> Message:
        """The next piece. Raises Refusal for a body that is too large or too slow."""
        if self._is_whole:  # what follows is that the client goes away
            return await self._receive()
        message: Message = {}
        if self._size <= self._max_bytes:
            message = await self._receive_in_time()
        self._num_arrived += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        self._size = max(self._size, self._num_arrived)
        if self._size > self._max_bytes:
            key = "; see serving.max_bytes" if self._is_file else ""
            sentence = f"request: its body has more than {self._max_bytes} bytes{key}"
            raise Refusal(413, "too_large", sentence)

        return message

    async def _receive_in_time(self) -> Message:
        allowed_s = min(GRACE_S + self._num_arrived / MIN_BYTES_S, UPLOAD_TIMEOUT_S)
        try:
            async with asyncio.timeout_at(self._begun_s + allowed_s):
                return await self._receive()
        except TimeoutError:
            sentence = (
                f"request: its body arrives too slowly; at least {MIN_BYTES_S:,} bytes a second "
                "are expected"
            )
            raise Refusal(408, "upload_timeout", sentence) from None


def is_json(headers: Headers) -> bool:
    """Whether a request says that its body is JSON."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def upload_folder() -> AbstractContextManager[Path]:
    """A folder for this service's uploads, see `scratch_folder`."""
    return scratch_folder(PREFIX)


def shown_name(name: str) -> str:
    """The last part of a name, without control characters; of a long one the beginning and the
    suffix, which says what the file is."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    readable = "".join(letter for letter in last if letter.isprintable())
    if len(readable) > MAX_NAME:
        suffix = Path(readable).suffix[:MAX_SUFFIX]
        readable = readable[: MAX_NAME - len(suffix)] + suffix

    return readable or "query"


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
