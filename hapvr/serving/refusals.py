"""Errors as HTTP answers: one JSON object with a sentence, without stack traces and without places of this machine."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hapvr.errors import ArgumentError, DataError, HapvrError, VideoError
from hapvr.serving.jobs import BusyError

MAX_SENTENCE = 1000
KEPT_HEADERS = frozenset({"content-range", "accept-ranges", "allow"})
STATUS_OF_REASON = {
    "not_allowed": 403,
    "missing_file": 404,
    "unknown_id": 404,
    "unknown_job": 404,
    "gone": 410,
    "replaced": 410,
    "too_large": 413,
    "upload_timeout": 408,
    "canceled": 409,
    "timeout": 504,
}
"""Other reasons mean that a query cannot be used: 422."""

_LOG = logging.getLogger(__name__)
# Two folders or more: `/jobs` or `and/or` are no places.
_QUOTED = re.compile(r"(['\"`])(?:file://)?/[^'\"`]*/([^/'\"`]*)\1")
_PLACE = re.compile(r"(?<![\w.:/])(?:file://)?(?:/[^\s/:'\"`,;]+)+/([^\s/:'\"`,;]+)")


class DiskFullError(HapvrError):
    """An upload found no space."""


def without_places(text: str, names: Mapping[str, str] | None = None) -> str:
    """A sentence for others: folders of this machine are cut from it; what is not UTF-8 or cannot be printed is escaped.

    names: place -> what it is called instead.
    """
    text = text.encode(errors="backslashreplace").decode()
    for place in sorted(names or {}, key=len, reverse=True):
        text = text.replace(place, (names or {})[place])
    text = _QUOTED.sub(r"\1\2\1", " ".join(text.split()))
    text = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return _PLACE.sub(r"\1", text)[:MAX_SENTENCE]


def describe(error: Exception, names: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """HTTP status, a short code, and a sentence for an error of a request."""
    sentence = without_places(str(error), names)
    if isinstance(error, VideoError):
        return STATUS_OF_REASON.get(error.reason, 422), error.reason, sentence
    if isinstance(error, BusyError):
        return 503, "busy", sentence
    if isinstance(error, DiskFullError):
        return 507, "disk_full", sentence
    if isinstance(error, ArgumentError):
        return 400, "wrong_request", sentence
    if isinstance(error, DataError):
        return 503, "no_index", sentence
    _LOG.error("unforeseen error", exc_info=error)
    return 500, "unexpected", f"unexpected {type(error).__name__}; the log of the service says where. Please report it"


class JsonRefusals:
    """Turns refusals that are no JSON into such an object: those of the guard, and of Starlette for a range of a file."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message | None = None
        said = b""

        async def send_object(message: Message) -> None:
            nonlocal start, said
            if message["type"] == "http.response.start" and _is_plain_refusal(message):
                start = message
            elif start is None:
                await send(message)
            else:
                said += message.get("body", b"")
            if start is not None and message["type"] == "http.response.body" and not message.get("more_body"):
                status, asked = start["status"], Headers(scope=scope).get("range")
                sentence = said.decode(errors="replace") or HTTPStatus(status).phrase
                sentence += f" (range {asked!r:.100})" if asked is not None else ""
                kept = {name: value for name, value in Headers(raw=start["headers"]).items() if name in KEPT_HEADERS}
                answer = JSONResponse({"error": without_places(sentence), "code": "http"}, status, headers=kept)
                await answer(scope, receive, send)

        await self.app(scope, receive, send_object if scope["type"] == "http" else send)


def _is_plain_refusal(start: Message) -> bool:
    kind = Headers(raw=start["headers"]).get("content-type", "")
    return bool(start["status"] >= 400) and not kind.startswith("application/json")


def install(app: FastAPI, names: Mapping[str, str]) -> None:
    """Answer all errors of an app by `describe`."""

    def answer(_: Request, error: Exception) -> JSONResponse:
        status, code, sentence = describe(error, names)
        headers = {"retry-after": str(error.retry_s)} if isinstance(error, BusyError) else {}
        return JSONResponse({"error": sentence, "code": code}, status, headers=headers)

    def answer_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        sentence = {
            404: "there is no such address; GET /openapi.json lists those that there are",
            405: f"{request.method} is not answered here; wanted {(error.headers or {}).get('Allow', 'another')}",
        }.get(error.status_code, str(error.detail))
        value = {"error": without_places(sentence), "code": "http"}
        return JSONResponse(value, error.status_code, headers=error.headers)

    def answer_invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        said = "; ".join(
            f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']} (got {one['input']!r:.100})"
            for one in error.errors()
        )
        return JSONResponse({"error": without_places(said), "code": "wrong_request"}, 400)

    app.add_exception_handler(RequestValidationError, answer_invalid)
    for kind in (HapvrError, Exception):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(HTTPException, answer_http)
