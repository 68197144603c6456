"""Files of a run's folder by which the process that prepares a training and those that do it know each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hapvr.files import read_json_as

CONFIG_NAME = "config.yaml"
RUN_NAME = "run.json"
FAILURE_NAME = "failure.txt"


class _Network(BaseModel, extra="allow"):
    architecture: str
    source: str
    sha256: str


class _Weights(BaseModel, extra="allow"):
    """Of the frozen networks; not all trainings have a teacher."""

    __pydantic_extra__: dict[str, _Network]
    backbone: _Network


class _Digests(BaseModel, extra="allow"):
    __pydantic_extra__: dict[str, str]
    whitening: str


class _Record(BaseModel, extra="allow"):
    """What every RUN_NAME has."""

    mlflow_run_id: str
    shards: list[str]
    data_digests: _Digests
    weights: _Weights
    environment: dict[str, str]
    labelled_pairs: dict[str, Any] = {}


def read_record(folder: Path) -> dict[str, Any]:
    """What `prepare_training` wrote down of the run in a folder. Raises DamagedError if it cannot be read."""
    return read_json_as(folder / RUN_NAME, _Record, remedy="train again, with another run key").model_dump()
