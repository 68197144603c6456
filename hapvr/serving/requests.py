"""What a search is asked for, as JSON or in the address of an upload."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from hapvr.errors import ArgumentError
from hapvr.search import DEFAULT_TOP
from hapvr.search.query import Part
from hapvr.stages.searcher import Wanted

MAX_TOP = 10_000
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]


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

    def wanted(self) -> Wanted:
        """Raises ArgumentError for a part that ends before it begins."""
        if self.at is not None and (self.from_ is not None or self.to is not None):
            raise ArgumentError("at and from/to: wanted one of the two")
        part = None
        if self.at is not None:
            part = Part.around(self.at)
        elif self.from_ is not None or self.to is not None:
            part = Part(start_s=self.from_ or 0.0, end_s=self.to)
        return Wanted(
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

    def wanted(self) -> Wanted:
        """Raises ArgumentError also where not exactly one query is named."""
        if sum(query is not None for query in (self.path, self.url, self.id)) != 1:
            raise ArgumentError("search: wanted one of path, url and id, or a file as the body of the request")
        return super().wanted()
