"""Versions of the registered model and their aliases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from hapvr.errors import DataError
from hapvr.tracking.runs import Tracker

CHALLENGER = "challenger"
CHAMPION = "champion"
TARGET_TAG = "hapvr.target_mean"
TARGET_DIGITS = 6
BENCHMARKS_TAG = "hapvr.benchmarks"


@dataclass(frozen=True)
class RegisteredVersion:
    """name and version in the registry; promoted: whether it became champion; reason: why or why not."""

    name: str
    version: int
    promoted: bool
    reason: str


def register(
    tracker: Tracker,
    name: str,
    *,
    run_id: str,
    model_uri: str,
    target: float,
    benchmarks: str,
    tags: Mapping[str, str],
) -> RegisteredVersion:
    """Make a version, alias it challenger, and champion if there is none or it is at least as good.

    target: mean target metric; benchmarks: digest of what it was measured on. A champion that was measured on other
    benchmarks is not comparable, and stays. A run that has a version already keeps it.
    """
    client = tracker.client
    try:
        client.create_registered_model(name, description="Similarity of video pairs (HAP-VR)")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    existing = client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
    if existing:
        number = int(existing[0].version)
    else:
        number = int(client.create_model_version(name, source=model_uri, run_id=run_id, tags=dict(tags)).version)
    client.set_model_version_tag(name, str(number), TARGET_TAG, f"{target:.{TARGET_DIGITS}f}")
    client.set_model_version_tag(name, str(number), BENCHMARKS_TAG, benchmarks)
    client.set_registered_model_alias(name, CHALLENGER, str(number))
    promoted, reason = _decide(tracker, name, number, target, benchmarks)
    if promoted:
        client.set_registered_model_alias(name, CHAMPION, str(number))
    client.update_model_version(name, str(number), description=reason)
    return RegisteredVersion(name, number, promoted, reason)


def list_versions(name: str, tracking_uri: str) -> list[dict[str, Any]]:
    """Version, aliases, description, run id and tags of every version, newest first. Raises DataError if there is none."""
    client = MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
    versions = client.search_model_versions(f"name = '{name}'")
    if not versions:
        raise DataError(f"model: the registry at {tracking_uri} has no model named {name}; `make demo` registers one")
    aliases: dict[str, list[str]] = {}
    for alias, number in client.get_registered_model(name).aliases.items():
        aliases.setdefault(str(number), []).append(alias)
    rows = [
        {
            "version": int(row.version),
            "aliases": sorted(aliases.get(str(row.version), [])),
            "description": row.description,
            "run_id": row.run_id,
            "tags": dict(row.tags),
        }
        for row in versions
    ]
    return sorted(rows, key=lambda row: -int(row["version"]))


def download_bundle(uri: str, tracking_uri: str) -> Path:
    """The local bundle of a registered model such as `models:/hapvr@champion`. Raises DataError if there is none."""
    mlflow.set_tracking_uri(tracking_uri)
    mlflow.set_registry_uri(tracking_uri)
    try:
        folder = mlflow.artifacts.download_artifacts(artifact_uri=uri)
    except MlflowException as error:
        raise DataError(
            f"model: {uri} is not in the registry at {tracking_uri} ({error.message}); "
            f"register one (`make demo` does), or give --tracking-uri"
        ) from error
    found = sorted(Path(folder).rglob("scorer.json"))
    if not found:
        raise DataError(f"model: {uri} holds no model bundle; it was not registered by this project")
    return found[0].parent


def _decide(tracker: Tracker, name: str, number: int, target: float, benchmarks: str) -> tuple[bool, str]:
    try:
        champion = tracker.client.get_model_version_by_alias(name, CHAMPION)
    except MlflowException:
        return True, f"first version of this name: champion with mean target metric {target:.4f}"
    if int(champion.version) == number:
        return True, f"is champion already; mean target metric {target:.4f}"
    if champion.tags.get(BENCHMARKS_TAG) != benchmarks:
        return False, (
            f"not promoted: champion version {champion.version} was measured on other benchmarks, so the two do not compare"
        )
    before = float(champion.tags[TARGET_TAG])
    if round(target, TARGET_DIGITS) >= before:
        return True, f"promoted: mean target metric {target:.4f} against {before:.4f} of version {champion.version}"
    return (
        False,
        f"not promoted: mean target metric {target:.4f} against {before:.4f} of champion version {champion.version}",
    )
