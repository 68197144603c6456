"""From a version to the data that its training read, and from data to the versions that have seen it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from hapvr.errors import ArgumentError
from hapvr.tracking.registry import find_version, list_versions, registry_client

LINEAGE_FILE = "data/lineage.json"
MIN_DIGEST = 8
"""The shortest prefix of a digest, in characters, that can be searched for."""


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """Where a version comes from. data: part (`whitening`, `<stage>/<shard>`) -> SHA-256 of what the training read.

    weights: frozen network -> its source. mlflow_run, dagster_run, revision: ids and commit, "" if unknown. lost: why
    there is no data, "" if there is.
    """

    version: int
    aliases: tuple[str, ...]
    mlflow_run: str
    dagster_run: str
    revision: str
    weights: Mapping[str, str]
    data: Mapping[str, str]
    lost: str = ""


def data_digest(data: Mapping[str, str]) -> str:
    """SHA-256 of all parts together: the tag `data.digest` of a version."""
    return hashlib.sha256(json.dumps(dict(data), sort_keys=True).encode()).hexdigest()


def lineage_of(name: str, version: str, tracking_uri: str) -> Lineage:
    """Of a version by its number or an alias. Raises DataError if there is none."""
    number = int(find_version(registry_client(tracking_uri), name, version).version)
    (row,) = (row for row in list_versions(name, tracking_uri) if row["version"] == number)
    return _lineage(row, tracking_uri)


def versions_from(name: str, data: str, tracking_uri: str) -> list[Lineage]:
    """Versions whose training read this data, newest first, each with only the parts that match.

    data: a shard, a part (`<stage>/<shard>`), or a digest or its first MIN_DIGEST characters or more. Versions that
    lost their lineage are listed too, without parts, because nobody knows what they read. Raises ArgumentError for any
    other text, DataError if the registry has no such model.
    """
    found = []
    is_digest = len(data) >= MIN_DIGEST
    for row in list_versions(name, tracking_uri):
        lineage = _lineage(row, tracking_uri)
        parts = {
            part: digest
            for part, digest in lineage.data.items()
            if data in (part, part.partition("/")[2]) or (is_digest and digest.startswith(data.lower()))
        }
        if parts or lineage.lost:
            found.append(replace(lineage, data=parts))
    if not is_digest and not any(lineage.data for lineage in found):
        raise ArgumentError(
            f"data is {data!r}, which is no shard of any version; wanted a shard, <stage>/<shard>, or {MIN_DIGEST} characters "
            "of a digest or more"
        )
    return found


def _lineage(row: Mapping[str, Any], tracking_uri: str) -> Lineage:
    run_id = str(row["run_id"] or "")
    known = Lineage(
        version=row["version"],
        aliases=tuple(row["aliases"]),
        mlflow_run=run_id,
        dagster_run=row["tags"].get("dagster.run_id", ""),
        revision="",
        weights={},
        data={},
    )
    try:
        tags = MlflowClient(tracking_uri).get_run(run_id).data.tags
        mlflow.set_tracking_uri(tracking_uri)
        record = mlflow.artifacts.load_dict(f"runs:/{run_id}/{LINEAGE_FILE}")
    except (MlflowException, OSError) as error:
        return replace(known, lost=f"MLflow run {run_id or '(none)'} has no {LINEAGE_FILE} ({error})")
    return replace(
        known,
        revision=tags.get("git.revision", ""),
        weights={part: str(weights["source"]) for part, weights in record["weights"].items()},
        data=record["data_digests"],
    )
