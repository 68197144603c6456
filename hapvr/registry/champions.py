"""The champion of a registered model: which version has the alias, and the promotions and rollbacks
that give it.

Each promotion has a number, by which a rollback finds the version that was champion before.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from hapvr.errors import DataError
from hapvr.registry.client import is_absent
from hapvr.registry.records import count_of
from hapvr.registry.versions import (
    DECISION_TAG,
    decide,
    list_versions,
    registry_change,
    unanswered,
    version_tags,
)

CHAMPION = "champion"
SINCE_TAG = "hapvr.champion_since"
"""Of versions that became champion: when, ISO 8601, UTC, by the clock of that moment."""
NUMBER_TAG = "hapvr.champion_number"
"""Of the same: the number of the promotion, counted from 1. Rollbacks follow it, since clocks may
run ahead."""


class Champion(NamedTuple):
    """The version with the alias champion, and the MLflow run it came from."""

    version: int
    run_id: str


def champion_of(client: MlflowClient, name: str) -> Champion | None:
    """The version with the alias champion; None if there is no such model, alias or version."""
    try:
        version = client.get_model_version_by_alias(name, CHAMPION)
    except MlflowException as error:
        if is_absent(error):
            return None
        raise unanswered(client, error) from error

    return Champion(int(version.version), str(version.run_id))


def promote(
    client: MlflowClient, name: str, version: int, *, reason: str, how: str = "hand"
) -> int | None:
    """Give a version the alias champion, and record on it, and on the former champion, when, how
    (baseline, gate, hand) and why. Returns the version that was champion before, None if none was.
    Repeating a call that was killed finishes it.

    Raises DataError if there is no such version, and RegistryError where the registry refuses.
    """
    with registry_change(client):
        version_tags(client, name, version)  # raises where there is no such version
        before = champion_of(client, name)
        numbers = _champion_numbers(client, name)
        _count_promotion(client, name, version, before=before, numbers=numbers)
        client.set_registered_model_alias(name, CHAMPION, str(version))
        now = datetime.now(UTC).isoformat()
        client.set_model_version_tag(name, str(version), SINCE_TAG, now)
        decide(client, name, version, f"champion by {how}", reason)
        replaced = None if before is None else before.version
        if replaced == version:  # by a call that was killed, which may not have recorded it
            replaced = _champion_before(numbers, version)
        _decide_replaced(client, name, replaced, by=version, how=how)
        return None if before is None else before.version


def rollback(client: MlflowClient, name: str, *, reason: str) -> int:
    """Make the former champion champion again; returns its version. Versions that were deleted or
    rolled back are skipped, and repeated rollbacks go further back. Raises DataError if there is no
    earlier champion."""
    with registry_change(client):
        numbers = _champion_numbers(client, name)
        current = champion_of(client, name)
        version = _champion_before(numbers, None if current is None else current.version)
        if version is None:
            raise DataError(
                f"model: {name} has no earlier champion; `hapvr models promote VERSION` chooses "
                "one by hand"
            )

        # The alias comes last: a call that was killed has not gone back, so that repeating it goes
        # back once.
        decide(client, name, version, "champion by rollback", reason)
        if current is not None:
            _decide_replaced(client, name, current.version, by=version, how="rollback")
        client.set_registered_model_alias(name, CHAMPION, str(version))
        return version


def _champion_numbers(client: MlflowClient, name: str) -> dict[int, int]:
    """Version -> the number of its last promotion, for all that were ever promoted."""
    numbers = {}
    for row in list_versions(client, name):
        number = count_of(row["tags"].get(NUMBER_TAG))
        if number is not None:
            numbers[int(row["version"])] = number

    return numbers


def _champion_before(numbers: Mapping[int, int], version: int | None) -> int | None:
    """The version that was champion before another; None if none was. version: None, or a version
    without a number because somebody else made it champion, stands for the end: the last of all is
    returned."""
    end = math.inf if version is None else numbers.get(version, math.inf)
    earlier = [(number, earlier) for earlier, number in numbers.items() if number < end]
    return max(earlier)[1] if earlier else None


def _count_promotion(
    client: MlflowClient,
    name: str,
    version: int,
    *,
    before: Champion | None,
    numbers: Mapping[int, int],
) -> None:
    """Give a version the number after that of the champion. Versions with higher numbers were
    rolled back, or their promotion was killed: they lose them, so no rollback leads to them."""
    last = max(numbers.values(), default=0)
    if before is not None and before.version in numbers:
        last = numbers[before.version]
    if before is not None and before.version == version and version in numbers:
        return
    for abandoned, number in numbers.items():
        if number > last:
            client.delete_model_version_tag(name, str(abandoned), NUMBER_TAG)

    client.set_model_version_tag(name, str(version), NUMBER_TAG, str(last + 1))


def _decide_replaced(
    client: MlflowClient, name: str, replaced: int | None, *, by: int, how: str
) -> None:
    """Record on a version that another took its place, unless that is recorded already."""
    if replaced is None or replaced == by:
        return
    decision = f"was champion; version {by} replaced it by {how}"
    if version_tags(client, name, replaced).get(DECISION_TAG) != decision:
        decide(client, name, replaced, decision)
