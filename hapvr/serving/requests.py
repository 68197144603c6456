"""What is asked for, as JSON or in the address, checked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hapvr.search import DEFAULT_TOP
from hapvr.search.duplicates import Kind
from hapvr.search.match import Part
from hapvr.steps.duplicates import LEAST_PROBABILITY
from hapvr.steps.searcher import SearchOptions

MAX_TOP = 10_000

Name = Annotated[str, Field(max_length=4096)]
SomeName = Annotated[str, Field(min_length=1, max_length=4096)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1000)]
Offset = Annotated[int, Field(ge=0)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class QueryOptions(_Request):
    """How to search, with the meanings of `hapvr search`."""

    top: Annotated[int, Field(ge=1, le=MAX_TOP)] = DEFAULT_TOP
    from_: Annotated[Seconds | None, Field(alias="from")] = None
    to: Seconds | None = None
    at: Seconds | None = None
    min_probability: Annotated[float, Field(ge=0, le=1)] = 0.0
    prior: Annotated[float | None, Field(gt=0, lt=1)] = None
    folder: Name = ""
    segments: bool = True

    def part(self) -> Part | None:
        """Which part of the query is meant; None: all of it. Raises ValueError for one that ends before it begins."""
        if self.at is not None:
            return Part.around(self.at)
        return None if self.from_ is None and self.to is None else Part(start_s=self.from_ or 0.0, end_s=self.to)

    @model_validator(mode="after")
    def _check_part(self) -> QueryOptions:
        if self.at is not None and (self.from_, self.to) != (None, None):
            raise ValueError("at and from/to: wanted one of the two")
        self.part()
        return self

    def wanted(self) -> SearchOptions:
        return SearchOptions(
            top=self.top,
            part=self.part(),
            min_probability=self.min_probability,
            prior=self.prior,
            folder=self.folder,
            segments=self.segments,
        )


class UploadSearch(QueryOptions):
    """name: of the file that is the body; its suffix says whether it is a still picture."""

    name: SomeName


class NamedSearch(QueryOptions):
    """One of path (a file or still picture of this machine), url, and id (of a video of the collection)."""

    path: SomeName | None = None
    url: Annotated[SomeName | None, Field(pattern="^https?://")] = None
    id: SomeName | None = None

    @property
    def query(self) -> str:
        return self.path or self.url or self.id or ""

    @model_validator(mode="after")
    def _check_query(self) -> NamedSearch:
        if sum(query is not None for query in (self.path, self.url, self.id)) != 1:
            raise ValueError("wanted one of path, url and id, or a file as the body of the request")
        if "://" in (self.path or ""):
            raise ValueError("a path is not a URL; name it as url")
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
    """Which groups and pairs are wanted. kind: "" for all. folder: beginning of ids; source: the part before the first /.

    cursor: the `next` of another answer.
    """

    kind: Kind | Literal[""] = ""
    folder: Name = ""
    source: Name = ""
    min_probability: Annotated[float, Field(ge=LEAST_PROBABILITY, le=1)] = 0.9
    limit: Count = 50
    cursor: Annotated[str, Field(max_length=20_000)] = ""
