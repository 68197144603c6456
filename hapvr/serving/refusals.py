"""Errors as HTTP answers: one JSON object with a sentence and a code, without stack traces or paths
of this machine."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from hapvr.errors import (
    ArgumentError,
    ConfigError,
    DataError,
    HapvrError,
    MissingPartError,
    VideoError,
    without_logins,
)
from hapvr.reasons import plain_reason
from hapvr.settings import explain

STATUS_OF_REASON = {
    "not_allowed": 403,
    "missing_file": 404,
    "unknown_id": 404,
    "canceled": 409,
    "not_kept": 410,
    "replaced": 410,
    "too_large": 413,
    "timeout": 504,
}
"""Other reasons mean that a query cannot be used: 422."""

_LOG = logging.getLogger(__name__)
# Two folders or more: `/jobs` or `and/or` are not paths.
_PATH = re.compile(r"(?<![\w.:/])(?:file://)?(?:/[^/:'\"`,;()]+)+/([^\s/:'\"`,;]+)")


class Refusal(HTTPException):
    """An answer that is an error. code: a short name for programs."""

    def __init__(
        self, status: int, code: str, sentence: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, sentence, headers)
        self.code = code


class Problem(BaseModel):
    """Every error: one sentence, and a code for programs. plain: the same for people who use the
    page, and what to do next; "" where `error` is plain enough."""

    error: str
    code: str
    plain: str = ""


def without_paths(text: str) -> str:
    """A sentence for others: folders of this machine are cut from it; what is not UTF-8 or cannot
    be printed is escaped."""
    text = " ".join(text[:1000].encode(errors="backslashreplace").decode().split())
    text = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return _PATH.sub(r"\1", text[:1000])  # the pattern takes quadratic time


def shown_model(name: str) -> str:
    """A model for others: no folder of this machine, but for those below the data root."""
    return Path(name).name if Path(name).is_absolute() else name


def describe(error: BaseException) -> tuple[int, dict[str, str]]:
    """HTTP status and body of an error."""
    status, code, sentence = _status_code_sentence(error)
    shown = without_paths(without_logins(sentence))
    # that of `gone` is of a file that was to be fetched; what a service does not have is plain
    is_of_service = isinstance(error, Refusal) and code == "gone"
    plain = "" if is_of_service else plain_reason(code, sentence)
    return status, {"error": shown, "code": code, "plain": plain}


def _status_code_sentence(error: BaseException) -> tuple[int, str, str]:
    if isinstance(error, Refusal):
        return error.status_code, error.code, str(error.detail)
    if isinstance(error, HTTPException):
        sentence = f"{error.detail}; openapi.json lists what is answered"
        return error.status_code, "http", sentence
    if isinstance(error, RequestValidationError | ValidationError):
        # FastAPI's error has the same errors() as pydantic's.
        return 400, "wrong_request", explain(error)  # type: ignore[arg-type]
    if isinstance(error, ArgumentError):
        return 400, "wrong_request", str(error)
    if isinstance(error, VideoError):
        return STATUS_OF_REASON.get(error.reason, 422), error.reason, str(error)
    if isinstance(error, DataError):
        return 503, "no_index", str(error)
    if isinstance(error, ConfigError | MissingPartError):  # the owner's to correct
        return 503, "configuration", str(error)

    _LOG.error("unforeseen error", exc_info=error)
    sentence = (
        f"unexpected {type(error).__name__}; the log of the service says where. Please report it"
    )
    return 500, "unexpected", sentence


def answer(request: Request, error: Exception) -> JSONResponse:
    """The handler of all errors."""
    if isinstance(error, ClientDisconnect):  # nobody is there to be answered
        return JSONResponse(None, 400)
    status, body = describe(error)
    request.app.state.service.metrics.refusals.labels(body["code"]).inc()
    headers = error.headers if isinstance(error, HTTPException) else None
    return JSONResponse(body, status, headers=headers)


ANSWERED = (
    HTTPException,
    RequestValidationError,
    ValidationError,
    HapvrError,
    ClientDisconnect,
    Exception,
)
