"""Settings of the search service."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hapvr.settings import Settings


class ServiceSettings(Settings):
    """The search service (`hapvr serve`). What a query may be and cost is in `serving`, as for the model server."""

    searches_at_once: Annotated[int, Field(ge=1, le=64)] = Field(default=2, description="others wait")
