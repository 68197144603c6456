"""What is asked for, as JSON or in the address of an upload."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from hapvr.errors import ArgumentError, VideoError
from hapvr.search import DEFAULT_TOP
from hapvr.search.query import Part
from hapvr.settings import explain
from hapvr.stages.searcher import SearchOptions

MAX_TOP = 10_000
MAX_JSON_BYTES = 2**16
JSON_TIMEOUT_S = 20.0
"""For receiving a JSON object, which is short."""

Model = TypeVar("Model", bound=BaseModel)
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]


async def small_json(request: Request, model: type[Model]) -> Model:
    """The body of a request as a model. Raises ArgumentError with all that is wrong, VideoError `too_large` and
    `upload_timeout`, and starlette's ClientDisconnect where the sender goes away."""
    body = b""
    try:
        async with asyncio.timeout(JSON_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_JSON_BYTES:
                    raise VideoError("too_large", f"request: the JSON object has more than {MAX_JSON_BYTES} bytes")
    except TimeoutError:
        raise VideoError(
            "upload_timeout", f"request: the JSON object did not arrive within {JSON_TIMEOUT_S:g} s"
        ) from None
    return parsed(model, body)


def parsed(model: type[Model], given: bytes | dict[str, str]) -> Model:
    """A model from JSON, or from the values of an address. Raises ArgumentError with all that is wrong."""
    try:
        return model.model_validate_json(given) if isinstance(given, bytes) else model.model_validate(given)
    except ValidationError as error:
        raise ArgumentError(f"request: {explain(error)}") from error


class Asked(BaseModel):
    """What is asked of a query, with the meanings of `hapvr search`."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    top: Annotated[int, Field(ge=1, le=MAX_TOP)] = DEFAULT_TOP
    from_: Annotated[Seconds | None, Field(alias="from")] = None
    to: Seconds | None = None
    at: Seconds | None = None
    min_probability: Annotated[float, Field(ge=0, le=1)] = 0.0
    prior: Share | None = None
    folder: Annotated[str, Field(max_length=4096)] = ""
    segments: bool = True

    def wanted(self) -> SearchOptions:
        """Raises ArgumentError for a part that ends before it begins."""
        if self.at is not None and (self.from_ is not None or self.to is not None):
            raise ArgumentError("at and from/to: wanted one of the two")
        part = None
        if self.at is not None:
            part = Part.around(self.at)
        elif self.from_ is not None or self.to is not None:
            part = Part(start_s=self.from_ or 0.0, end_s=self.to)
        return SearchOptions(
            top=self.top,
            part=part,
            min_probability=self.min_probability,
            prior=self.prior,
            folder=self.folder,
            segments=self.segments,
        )


class UploadAsked(Asked):
    """name: of the file that is the body; its suffix says whether it is a still picture."""

    name: Annotated[str, Field(min_length=1, max_length=4096)]


Text = Annotated[str, Field(min_length=1, max_length=4096)]


class SearchAsked(Asked):
    """One of path (a file or still picture of this machine), url, and id (of a video of the collection)."""

    path: Text | None = None
    url: Text | None = None
    id: Text | None = None

    def wanted(self) -> SearchOptions:
        """Raises ArgumentError also where not exactly one query is named."""
        if sum(query is not None for query in (self.path, self.url, self.id)) != 1:
            raise ArgumentError("search: wanted one of path, url and id, or a file as the body of the request")
        return super().wanted()


class MarkAsked(BaseModel):
    """query: an id, or job: the search whose query is meant; reference: an id; mark: None takes a mark back.

    The SHA-256 of a file is taken for an id, so that every mark of GET /pairs can be taken back. name: what to call the
    query then.
    """

    model_config = ConfigDict(extra="forbid")

    query: Text | None = None
    name: Annotated[str | None, Field(max_length=4096)] = None
    job: Text | None = None
    reference: Text
    mark: Literal["match", "not_a_match"] | None
