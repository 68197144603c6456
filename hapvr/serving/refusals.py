"""Errors as HTTP answers: one JSON object with a sentence and a code, without stack traces or paths of this machine."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from hapvr.errors import ArgumentError, DataError, HapvrError, VideoError

MAX_SENTENCE = 1000
STATUS_OF_REASON = {
    "not_allowed": 403,
    "missing_file": 404,
    "unknown_id": 404,
    "too_large": 413,
    "canceled": 409,
    "timeout": 504,
}
"""Other reasons mean that a query cannot be used: 422."""

_LOG = logging.getLogger(__name__)
# Two folders or more: `/jobs` or `and/or` are no paths.
_QUOTED = re.compile(r"(['\"`])(?:file://)?/[^'\"`]*/([^/'\"`]*)\1")
_PATH = re.compile(r"(?<![\w.:/])(?:file://)?(?:/[^\s/:'\"`,;]+)+/([^\s/:'\"`,;]+)")


class Refusal(HTTPException):
    """An answer that is an error. code: a short name for programs."""

    def __init__(self, status: int, code: str, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, sentence, headers)
        self.code = code


def without_paths(text: str, names: Mapping[str, str]) -> str:
    """A sentence for others: folders of this machine are cut from it; what is not UTF-8 or cannot be printed is escaped.

    names: path -> what it is called instead.
    """
    text = text.encode(errors="backslashreplace").decode()
    for path in sorted(names, key=len, reverse=True):
        text = text.replace(path, names[path])
    text = _QUOTED.sub(r"\1\2\1", " ".join(text.split()))
    text = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return _PATH.sub(r"\1", text)[:MAX_SENTENCE]


def describe(error: BaseException, names: Mapping[str, str]) -> tuple[int, dict[str, str]]:
    """HTTP status and body of an error. names: as for `without_paths`."""
    status, code, sentence = 500, "unexpected", ""
    match error:
        case Refusal():
            status, code, sentence = error.status_code, error.code, str(error.detail)
        case HTTPException(status_code=404):
            status, code, sentence = (
                404,
                "http",
                "there is no such address; GET /openapi.json lists those that there are",
            )
        case HTTPException():
            status, code, sentence = (
                error.status_code,
                "http",
                f"{error.detail}; GET /openapi.json says what is answered",
            )
        case RequestValidationError() | ValidationError():
            status, code, sentence = (
                400,
                "wrong_request",
                "; ".join(
                    f"{'.'.join(map(str, one['loc']))}: {one['msg']} (got {one['input']!r:.100})"
                    for one in error.errors()
                ),
            )
        case VideoError():
            status, code, sentence = STATUS_OF_REASON.get(error.reason, 422), error.reason, str(error)
        case ArgumentError():
            status, code, sentence = 400, "wrong_request", str(error)
        case DataError():
            status, code, sentence = 503, "no_index", str(error)
        case _:
            _LOG.error("unforeseen error", exc_info=error)
            sentence = f"unexpected {type(error).__name__}; the log of the service says where. Please report it"
    return status, {"error": without_paths(sentence, names), "code": code}


def install(app: FastAPI, names: Mapping[str, str]) -> None:
    """Answer all errors of an app by `describe`."""

    def answer(_: Request, error: Exception) -> JSONResponse:
        if isinstance(error, ClientDisconnect):  # nobody is there to be answered
            return JSONResponse(None, 400)
        status, body = describe(error, names)
        return JSONResponse(body, status, headers=error.headers if isinstance(error, HTTPException) else None)

    for kind in (HTTPException, RequestValidationError, ValidationError, HapvrError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, answer)
