"""The registered model: versions of a bundle with their cards, and what was decided on each."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.mlflow_tags import MLFLOW_USER

from hapvr.errors import DataError, RegistryBusyError, RegistryError
from hapvr.files import FULL_DISK
from hapvr.registry.client import is_absent, without_login
from hapvr.registry.logged_model import log_model
from hapvr.registry.records import count_of, created_text, measure_of
from hapvr.registry.runs import Tracker
from hapvr.scorer.description import CARD_FILE

CHALLENGER = "challenger"
WEIGHTS_TAG = "backbone.weights"
TARGET_TAG = "hapvr.target_mean"
DECISION_TAG = "hapvr.gate.decision"
REASON_TAG = "hapvr.gate.reason"
DECIDED_TAG = "hapvr.gate.decided"
WARNING_TAG = "hapvr.warning"
MAKER_TAG = "hapvr.made_by"
LINEAGE_FILE = "data/lineage.json"
DESCRIPTION = (
    "How similar are two videos, and where? (HAP-VR). The alias `champion` is the version in "
    "use, `challenger` the newest; a "
    "version's description says why it was promoted or not."
)
MAX_CHARACTERS = 5000
"""The longest tag and description that MLflow's database takes. SQLite would take longer ones, but
PostgreSQL refuses them."""


@dataclass(frozen=True, kw_only=True)
class BundleRun:
    """The MLflow run in which a version of a bundle is made."""

    key: str
    """Identifies the run: if there is one with this key, it continues."""
    name: str
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    """Of run and version."""
    metrics: Mapping[str, float] = field(default_factory=dict)


def register_bundle(
    tracker: Tracker, name: str, bundle: Path, run: BundleRun, *, target: float | None = None
) -> int:
    """Make a version of a bundle; returns its number.

    name: of the registered model.
    target: as of `register`."""
    with registry_change(tracker.client):
        run_id = tracker.start(run.key, name=run.name, params=run.params, tags=run.tags)
        if run.metrics:
            tracker.metrics(run_id, run.metrics)
        if (bundle / CARD_FILE).exists():
            tracker.client.log_artifact(run_id, str(bundle / CARD_FILE))
        uri = log_model(tracker, run_id, bundle)
        tracker.client.set_terminated(run_id)
        return register(tracker, name, run_id=run_id, model_uri=uri, target=target, tags=run.tags)


def register(
    tracker: Tracker,
    name: str,
    *,
    run_id: str,
    model_uri: str,
    target: float | None,
    tags: Mapping[str, str],
) -> int:
    """Make a version of a run's logged model and give it the alias challenger; returns its number.
    A run that has a version already keeps it.

    target: mean target metric, in [0, 1]; None: not measured."""
    client = tracker.client
    try:
        client.create_registered_model(name, description=DESCRIPTION)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise

    versions = list(client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'"))
    if not versions:
        # A server refuses the address of a logged model without its id. A client on a database
        # looks the id up.
        logged = model_uri.removeprefix("models:/") if model_uri.startswith("models:/") else None
        version = client.create_model_version(
            name,
            model_uri,
            run_id=run_id,
            tags={**tags, MAKER_TAG: _maker(client.get_run(run_id).data.tags)},
            model_id=logged,
        )
        versions = [version]

    number = str(versions[0].version)
    if target is not None:
        client.set_model_version_tag(name, number, TARGET_TAG, f"{target:.6f}")
    client.set_registered_model_alias(name, CHALLENGER, number)
    return int(number)


def _maker(tags: Mapping[str, str]) -> str:
    """Who made a run with these tags: the Dagster run or the user."""
    if "dagster.run_id" in tags:
        return f"Dagster run {tags['dagster.run_id']}"
    return tags.get(MLFLOW_USER, "")


def version_tags(client: MlflowClient, name: str, version: int) -> dict[str, str]:
    """Tags of a version. Raises DataError if there is none."""
    try:
        return dict(client.get_model_version(name, str(version)).tags)
    except MlflowException as error:
        if not is_absent(error):
            raise unanswered(client, error) from error
        raise DataError(
            f"model: the registry at {without_login(client.tracking_uri)} has no {name} version "
            f"{version}; `hapvr models list` shows those it has"
        ) from error


def unanswered(client: MlflowClient, error: MlflowException) -> RegistryError:
    """The error to raise where a registry has not answered: busy, or with an error of its own."""
    shown = without_login(client.tracking_uri)
    if "database is locked" in str(error):
        return RegistryBusyError(
            f"model: the registry at {shown} is in use by another process; wait for it to end, "
            "then repeat this call"
        )
    if any(said in str(error) for said in FULL_DISK):
        return RegistryError(
            f"model: the registry at {shown} could not be written, as its disk is full; free "
            "space, then repeat this call"
        )

    return RegistryError(
        f"model: the registry at {shown} answers with {error.error_code}; try again later"
    )


@contextmanager
def registry_change(client: MlflowClient) -> Iterator[None]:
    """Holds the calls of one change. Raises RegistryError where the registry refuses one of
    them."""
    try:
        yield
    except MlflowException as error:
        raise unanswered(client, error) from error


def decide(client: MlflowClient, name: str, version: int, decision: str, reason: str = "") -> None:
    """Record the latest decision on a version, with who decided and when, and write its
    description: a warning if there is one, the decision, and where the card is. reason: "" keeps
    the earlier one."""
    user = resolve_tags().get(MLFLOW_USER, "")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    tags = {
        DECISION_TAG: decision,
        DECIDED_TAG: f"{now} by {user}",
        REASON_TAG: reason[:MAX_CHARACTERS],
    }
    for key, value in tags.items():
        if value:
            client.set_model_version_tag(name, str(version), key, value)

    description = _description_of(client.get_model_version(name, str(version)))
    client.update_model_version(name, str(version), description=description[:MAX_CHARACTERS])


def _description_of(version: ModelVersion) -> str:
    """The text on the page of a version."""
    parts = []
    warning = version.tags.get(WARNING_TAG, "")
    if warning:
        parts.append(f"Warning: {warning}")
    decision = decision_of(version.tags)
    if decision:
        parts.append(decision)
    parts.append(
        f"Model card: runs:/{version.run_id}/{CARD_FILE}, or `hapvr models show {version.version}`"
    )
    return "\n\n".join(parts)


def decision_of(tags: Mapping[str, str]) -> str:
    """The latest decision on a version, and its reason."""
    decision = tags.get(DECISION_TAG, "")
    reason = tags.get(REASON_TAG, "")
    if reason.startswith(decision):
        return reason
    return f"{decision}: {reason}".removesuffix(": ")


def list_versions(client: MlflowClient, name: str) -> list[dict[str, Any]]:
    """What is known of every version, newest first.

    created: ISO 8601, UTC; "" where that is not known.
    target: mean target metric, in [0, 1], None: not measured.
    weights: of the backbone.
    decision: the last one, with its reason.
    decided: when and by whom.
    made_by: the Dagster run or the user.

    Raises:
        DataError: there is none."""
    try:
        versions = client.search_model_versions(f"name = '{name}'")
        aliases = client.get_registered_model(name).aliases if versions else {}
    except MlflowException as error:
        raise unanswered(client, error) from error

    if not versions:
        raise DataError(
            f"model: {without_login(client.tracking_uri)} has no model {name}; `hapvr train` and "
            "`hapvr models register` make one, `make demo` shows how"
        )

    newest_first = sorted(versions, key=lambda version: -int(version.version))
    return [_row_of(version, aliases) for version in newest_first]


def _row_of(version: ModelVersion, aliases: Mapping[str, str]) -> dict[str, Any]:
    """What is known of a version, see `list_versions`.

    aliases: of the model, with the version of each."""
    number = int(version.version)
    tags = version.tags
    return {
        "version": number,
        "aliases": sorted(alias for alias, named in aliases.items() if count_of(named) == number),
        "created": created_text(version.creation_timestamp),
        "target": measure_of(tags.get(TARGET_TAG)),
        "weights": tags.get(WEIGHTS_TAG, ""),
        "decision": decision_of(tags),
        "decided": tags.get(DECIDED_TAG, ""),
        "made_by": tags.get(MAKER_TAG, ""),
        "warning": tags.get(WARNING_TAG, ""),
        "run_id": version.run_id,
        "tags": dict(tags),
    }
