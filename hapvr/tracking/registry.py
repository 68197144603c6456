"""Versions of the registered model and their aliases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from hapvr.errors import DataError
from hapvr.tracking.champions import CHALLENGER
from hapvr.tracking.runs import Tracker
from hapvr.tracking.store import require_store, require_writable

TARGET_TAG = "hapvr.target_mean"
DESCRIPTION = (
    "How similar are two videos, and where? (HAP-VR). The alias `champion` is the version in use, `challenger` the newest; a "
    "version's description says why it was promoted or not, and what it reaches."
)


def register(
    tracker: Tracker, name: str, *, run_id: str, model_uri: str, target: float, tags: Mapping[str, str]
) -> int:
    """Make a version of a run's logged model and give it the alias challenger; returns its number.

    target: mean target metric, in [0, 1]. A run that has a version already keeps it.
    """
    client = tracker.client
    try:
        client.create_registered_model(name, description=DESCRIPTION)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    existing = client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")
    if existing:
        number = int(existing[0].version)
    else:
        # A server refuses the address of a logged model without its id. A client on a database looks the id up.
        logged = model_uri.removeprefix("models:/") if model_uri.startswith("models:/") else None
        made = client.create_model_version(name, source=model_uri, run_id=run_id, tags=dict(tags), model_id=logged)
        number = int(made.version)
    client.set_model_version_tag(name, str(number), TARGET_TAG, f"{target:.6f}")
    client.set_registered_model_alias(name, CHALLENGER, str(number))
    return number


def registry_client(tracking_uri: str, *, writing: bool = False) -> MlflowClient:
    """A client of the registry at an address. writing: whether it is to be changed.

    Raises DataError if there is none or it cannot be written, ArgumentError for no address.
    """
    require_store(tracking_uri)
    if writing:
        require_writable(tracking_uri)
    return MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)


def find_version(client: MlflowClient, name: str, version: str) -> ModelVersion:
    """A version by its number or an alias such as champion. Raises DataError if there is none."""
    try:
        if version.isdigit():
            return client.get_model_version(name, version)
        return client.get_model_version_by_alias(name, version)
    except MlflowException as error:
        raise DataError(
            f"model: the registry at {client.tracking_uri} has no {name} version {version}; "
            "`hapvr models list` shows those it has"
        ) from error


def headline(description: str | None) -> str:
    """The line of a version's description that states the gate's decision."""
    return (description or "").partition("\n")[0]


def list_versions(name: str, tracking_uri: str) -> list[dict[str, Any]]:
    """Version, aliases, first line of the description, run id and tags of every version, newest first.

    Raises DataError if there is none.
    """
    client = registry_client(tracking_uri)
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
            "description": headline(row.description),
            "run_id": row.run_id,
            "tags": dict(row.tags),
        }
        for row in versions
    ]
    return sorted(rows, key=lambda row: -int(row["version"]))
