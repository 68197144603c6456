"""Settings of the search service."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hapvr.settings import Settings


class ServiceSettings(Settings):
    """The search service (`hapvr serve`). What a query may be and cost is in `serving`, as for the model server."""

    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=8000, description="0: any that is free")
    searches_at_once: Annotated[int, Field(ge=1, le=64)] = Field(default=2, description="others wait")
    max_waiting: Annotated[int, Field(ge=0)] = Field(
        default=32, description="searches that wait, uploads that are being received included; more are refused"
    )
    search_timeout_s: Annotated[float, Field(gt=0)] = Field(
        default=300.0, description="for one search, without its wait"
    )
    answer_within_s: Annotated[float, Field(ge=0)] = Field(
        default=2.0, description="a search that takes longer is answered with the id of a job"
    )
    upload_timeout_s: Annotated[float, Field(gt=0)] = Field(default=600.0, description="for receiving one file")
    kept_jobs: Annotated[int, Field(ge=1)] = Field(default=64, description="answers that can be asked for again")
    kept_bytes: Annotated[int, Field(ge=0)] = Field(
        default=512 * 2**20, description="memory for features of their queries, which matrices of pairs are made from"
    )
    max_matrix_cells: Annotated[int, Field(ge=1)] = Field(
        default=250_000, description="frame similarities of a pair; of longer videos every n-th frame is compared"
    )
    refresh_s: Annotated[float, Field(ge=0)] = Field(
        default=5.0, description="how long the service goes on before it looks whether the index has changed"
    )
