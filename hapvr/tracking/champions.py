"""Which version is champion, and which were before: the aliases of a registered model and their history."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from pydantic import TypeAdapter, ValidationError

from hapvr.errors import ArgumentError, DataError
from hapvr.settings import explain

CHALLENGER = "challenger"
CHAMPION = "champion"
HISTORY_TAG = "hapvr.champions"
DECISION_TAG = "hapvr.gate.decision"
REASON_TAG = "hapvr.gate.reason"
MAX_HISTORY = 40
_ROWS = TypeAdapter(list[tuple[int, str, str]])
"""Version, since and how of each champion."""

MAX_TAG_CHARACTERS = 5000
MAX_DESCRIPTION_CHARACTERS = 5000
"""The longest text that MLflow's database takes. SQLite would take more, but PostgreSQL refuses it."""


@dataclass(frozen=True)
class Champion:
    """The version with the alias champion, and the MLflow run it came from."""

    version: int
    run_id: str


@dataclass(frozen=True)
class ChampionEntry:
    """A version that was made champion: since when (ISO 8601, UTC) and how: gate, hand or rollback."""

    version: int
    since: str
    how: str


def champion_of(client: MlflowClient, name: str) -> Champion | None:
    """The version with the alias champion; None if there is no such model, alias or version."""
    try:
        found = client.get_model_version_by_alias(name, CHAMPION)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise
    return Champion(int(found.version), str(found.run_id))


def version_tags(client: MlflowClient, name: str, version: int) -> dict[str, str]:
    """Tags of a version. Raises DataError if there is none."""
    try:
        return dict(client.get_model_version(name, str(version)).tags)
    except MlflowException as error:
        raise DataError(
            f"model: the registry has no version {version} of {name}; `hapvr models list` shows those it has"
        ) from error


def describe(client: MlflowClient, name: str, version: int, *, description: str, tags: Mapping[str, str]) -> None:
    """Set a version's description and tags, each cut to what MLflow takes; tags without a value are left out."""
    for key, value in tags.items():
        if value:
            client.set_model_version_tag(name, str(version), key, value[:MAX_TAG_CHARACTERS])
    client.update_model_version(name, str(version), description=description[:MAX_DESCRIPTION_CHARACTERS])


def history(client: MlflowClient, name: str) -> list[ChampionEntry]:
    """Champions so far, oldest first. Raises DataError if there is no such model, or if its tag cannot be read."""
    text = _model(client, name).tags.get(HISTORY_TAG, "[]")
    try:
        return [ChampionEntry(*row) for row in _ROWS.validate_json(text)]
    except ValidationError as error:
        raise DataError(
            f"model: the tag {HISTORY_TAG} of {name} in the registry is damaged ({explain(error)}); delete the tag, and the "
            "history begins anew"
        ) from error


def set_champion(client: MlflowClient, name: str, version: int, *, how: str, reason: str) -> None:
    """Give a version the alias champion, and write down when and why. Raises DataError if there is no such version."""
    version_tags(client, name, version)
    entries = [*history(client, name), ChampionEntry(version, datetime.now(UTC).isoformat(timespec="seconds"), how)]
    client.set_registered_model_alias(name, CHAMPION, str(version))
    rows = [[entry.version, entry.since, entry.how] for entry in entries[-MAX_HISTORY:]]
    client.set_registered_model_tag(name, HISTORY_TAG, json.dumps(rows))
    client.set_model_version_tag(name, str(version), DECISION_TAG, f"champion by {how}")
    client.set_model_version_tag(name, str(version), REASON_TAG, reason[:MAX_TAG_CHARACTERS])


def promote(client: MlflowClient, name: str, version: int, *, reason: str) -> ChampionEntry | None:
    """Make a version champion by hand. Returns the entry of the champion before it, None if there was none.

    Raises DataError if there is no such version, ArgumentError if it is the champion already.
    """
    before = champion_of(client, name)
    if before is not None and before.version == version:
        raise ArgumentError(f"model: version {version} of {name} is champion already")
    set_champion(client, name, version, how="hand", reason=reason)
    return _last_entry_of(client, name, before)


def rollback(client: MlflowClient, name: str, *, reason: str) -> int:
    """Make the champion before this one champion again; returns its version.

    Versions that were deleted are passed over. Repeated rollbacks go further back. Raises DataError if there is none.
    """
    entries = history(client, name)
    current = champion_of(client, name)
    now = current.version if current is not None else None
    existing = {int(row.version) for row in client.search_model_versions(f"name = '{name}'")}
    # A rollback drops the champions that came after the version it restores. `stack` holds those that are left.
    stack: list[int] = []
    for entry in entries:
        if entry.how == "rollback" and entry.version in stack:
            del stack[stack.index(entry.version) + 1 :]
        else:
            stack.append(entry.version)
    while stack and (stack[-1] == now or stack[-1] not in existing):
        stack.pop()
    if not stack:
        raise DataError(
            f"model: {name} has no earlier champion to go back to; `hapvr models promote VERSION` chooses one by hand"
        )
    set_champion(client, name, stack[-1], how="rollback", reason=reason)
    return stack[-1]


def _last_entry_of(client: MlflowClient, name: str, champion: Champion | None) -> ChampionEntry | None:
    if champion is None:
        return None
    found = [entry for entry in history(client, name) if entry.version == champion.version]
    return found[-1] if found else ChampionEntry(champion.version, "", "unknown")


def _model(client: MlflowClient, name: str) -> Any:
    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        raise DataError(f"model: the registry has no model named {name}; `make demo` registers one") from error
