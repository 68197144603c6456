"""The registered model: versions of a run's bundle with their cards, the champion among them, and
its history.

A version's files are a pyfunc model, which brings this package's code, its requirements, a
signature and an example.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, NamedTuple

import mlflow
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.tracking import MlflowClient
from mlflow.tracking.context.registry import resolve_tags
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import AnyType, Array, Object, Property
from mlflow.utils.mlflow_tags import MLFLOW_USER

import hapvr
from hapvr.errors import DataError, RegistryError
from hapvr.registry.client import is_absent, without_login
from hapvr.registry.runs import Tracker
from hapvr.scorer import DEFAULT_PRECISION
from hapvr.scorer.bundle import CARD_FILE
from hapvr.scorer.segments import Segment

CHALLENGER = "challenger"
CHAMPION = "champion"
WEIGHTS_TAG = "backbone.weights"
TARGET_TAG = "hapvr.target_mean"
SINCE_TAG = "hapvr.champion_since"
"""Of versions that became champion: when, ISO 8601, UTC, as the clock then told."""
NUMBER_TAG = "hapvr.champion_number"
"""Of the same: which promotion it was, counted from 1. A rollback goes by it, as clocks may run
ahead."""
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
"""The longest tag and description that MLflow's database takes. SQLite would take more, but
PostgreSQL refuses it."""

REQUIREMENTS = (
    "av",
    "filelock",
    "matplotlib",
    "mlflow",
    "numpy",
    "openvino",
    "pebble",
    "pillow",
    "polars",
    "pyarrow",
    "pydantic",
    "pyyaml",
    "safetensors",
    "timm",
    "torch",
    "torchvision",
    "yt-dlp",
)


class Champion(NamedTuple):
    """The version with the alias champion, and the MLflow run it came from."""

    version: int
    run_id: str


def log_model(tracker: Tracker, run_id: str, bundle: Path) -> str:
    """Log the bundle as a pyfunc model of the run, with this package's code and requirements;
    returns its `models:/` URI."""
    text, number = DataType.string, DataType.double
    inputs = [ColSpec(text, "query"), ColSpec(text, "reference", required=False)]
    # a list of texts of which one is null would come with each name cut to one character
    inputs.append(ColSpec(AnyType(), "references", required=False))
    kinds = {
        "query": text,
        "reference": text,
        "similarity": number,
        "probability": number,
        "threshold": number,
    }
    kinds |= {"verdict": text, "error": text, "warning": text}
    outputs = [ColSpec(kind, name) for name, kind in kinds.items()]
    segment = Object([Property(one.name, number) for one in fields(Segment)])
    outputs.append(ColSpec(Array(segment), "segments", required=False))
    params = [
        ParamSpec("segments", DataType.boolean, False),
        ParamSpec("precision", number, DEFAULT_PRECISION),
    ]
    example = {
        "query": ["clips/a.mp4", "clips/a.mp4"],
        "reference": ["clips/b.mp4", "https://example.org/c.mp4"],
    }
    mlflow.set_tracking_uri(tracker.uri)
    mlflow.set_registry_uri(tracker.uri)
    with mlflow.start_run(run_id=run_id):
        info = mlflow.pyfunc.log_model(
            name="model",
            python_model=str(Path(__file__).with_name("pyfunc_model.py")),
            artifacts={"bundle": str(bundle)},
            code_paths=[str(Path(hapvr.__file__).parent)],
            pip_requirements=[
                f"{package}=={installed_version(package)}" for package in REQUIREMENTS
            ],
            signature=ModelSignature(Schema(inputs), Schema(outputs), ParamSchema(params)),
            input_example=pd.DataFrame(example),
        )
    return str(info.model_uri)


def register_bundle(
    tracker: Tracker,
    name: str,
    bundle: Path,
    *,
    key: str,
    run_name: str,
    params: Mapping[str, Any],
    tags: Mapping[str, str],
    metrics: Mapping[str, float] | None = None,
    target: float | None = None,
) -> int:
    """Make a version of a bundle, in the MLflow run of this key, which is made if necessary;
    returns its number. metrics: of the run. target: as of `register`."""
    run_id = tracker.start(key, name=run_name, params=params, tags=tags)
    if metrics:
        tracker.metrics(run_id, metrics)
    if (bundle / CARD_FILE).exists():
        tracker.client.log_artifact(run_id, str(bundle / CARD_FILE))
    uri = log_model(tracker, run_id, bundle)
    tracker.client.set_terminated(run_id)
    return register(tracker, name, run_id=run_id, model_uri=uri, target=target, tags=tags)


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
    target: mean target metric, in [0, 1]; None: not measured. A run that has a version already
    keeps it."""
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
        found = client.get_run(run_id).data.tags
        maker = (
            f"Dagster run {found['dagster.run_id']}"
            if "dagster.run_id" in found
            else found.get(MLFLOW_USER, "")
        )
        known = {**tags, MAKER_TAG: maker}
        versions = [
            client.create_model_version(name, model_uri, run_id=run_id, tags=known, model_id=logged)
        ]
    number = str(versions[0].version)
    if target is not None:
        client.set_model_version_tag(name, number, TARGET_TAG, f"{target:.6f}")
    client.set_registered_model_alias(name, CHALLENGER, number)
    return int(number)


def version_tags(client: MlflowClient, name: str, version: int) -> dict[str, str]:
    """Tags of a version. Raises DataError if there is none."""
    try:
        return dict(client.get_model_version(name, str(version)).tags)
    except MlflowException as error:
        if not is_absent(error):
            raise _unanswered(client, error) from error
        problem = (
            f"the registry at {without_login(client.tracking_uri)} has no {name} version {version}"
        )
        raise DataError(f"model: {problem}; `hapvr models list` shows those it has") from error


def _unanswered(client: MlflowClient, error: MlflowException) -> RegistryError:
    said = f"the registry at {without_login(client.tracking_uri)} answers with {error.error_code}"
    return RegistryError(f"model: {said}; try again later")


def decide(client: MlflowClient, name: str, version: int, decision: str, reason: str = "") -> None:
    """Write the last decision on a version, with who and when, and its description: a warning if
    there is one, the decision, and where the card is. reason: "" keeps the one before."""
    user, now = resolve_tags().get(MLFLOW_USER, ""), datetime.now(UTC).isoformat(timespec="seconds")
    tags = {
        DECISION_TAG: decision,
        DECIDED_TAG: f"{now} by {user}",
        REASON_TAG: reason[:MAX_CHARACTERS],
    }
    for key, value in tags.items():
        if value:
            client.set_model_version_tag(name, str(version), key, value)
    found = client.get_model_version(name, str(version))
    warning, card = found.tags.get(WARNING_TAG, ""), f"Model card: runs:/{found.run_id}/{CARD_FILE}"
    parts = [
        warning and f"Warning: {warning}",
        decision_of(found.tags),
        f"{card}, or `hapvr models show {version}`",
    ]
    client.update_model_version(
        name, str(version), description="\n\n".join(filter(None, parts))[:MAX_CHARACTERS]
    )


def decision_of(tags: Mapping[str, str]) -> str:
    """What was decided of a version last, and why."""
    decision, reason = tags.get(DECISION_TAG, ""), tags.get(REASON_TAG, "")
    return reason if reason.startswith(decision) else f"{decision}: {reason}".removesuffix(": ")


def list_versions(client: MlflowClient, name: str) -> list[dict[str, Any]]:
    """What is known of every version, newest first.

    created: ISO 8601, UTC. target: mean target metric, in [0, 1], None: not measured. weights: of
    the backbone. decision: the last one, with its reason; decided: when and by whom. made_by: the
    Dagster run or the user.

    Raises DataError if there is none."""
    versions = client.search_model_versions(f"name = '{name}'")
    if not versions:
        raise DataError(
            f"model: {without_login(client.tracking_uri)} has no model {name}; `make demo` "
            "registers one"
        )
    aliases = client.get_registered_model(name).aliases
    return [
        {
            "version": int(row.version),
            "aliases": sorted(
                alias for alias, number in aliases.items() if int(number) == int(row.version)
            ),
            "created": datetime.fromtimestamp(row.creation_timestamp / 1000, UTC).isoformat(
                timespec="seconds"
            ),
            "target": float(row.tags[TARGET_TAG]) if TARGET_TAG in row.tags else None,
            "weights": row.tags.get(WEIGHTS_TAG, ""),
            "decision": decision_of(row.tags),
            "decided": row.tags.get(DECIDED_TAG, ""),
            "made_by": row.tags.get(MAKER_TAG, ""),
            "warning": row.tags.get(WARNING_TAG, ""),
            "run_id": row.run_id,
            "tags": dict(row.tags),
        }
        for row in sorted(versions, key=lambda row: -int(row.version))
    ]


def champion_of(client: MlflowClient, name: str) -> Champion | None:
    """The version with the alias champion; None if there is no such model, alias or version."""
    try:
        found = client.get_model_version_by_alias(name, CHAMPION)
    except MlflowException as error:
        if is_absent(error):
            return None
        raise _unanswered(client, error) from error
    return Champion(int(found.version), str(found.run_id))


def promote(
    client: MlflowClient, name: str, version: int, *, reason: str, how: str = "hand"
) -> int | None:
    """Give a version the alias champion, and write down on it, and on the one before, when, how
    (baseline, gate, hand) and why. Returns the version that was champion before, None if none was.
    A call that was killed is finished by repeating it.

    Raises DataError if there is no such version.
    """
    version_tags(client, name, version)  # raises where there is no such version
    before = champion_of(client, name)
    numbers = _champion_numbers(client, name)
    _count_promotion(client, name, version, before=before, numbers=numbers)
    client.set_registered_model_alias(name, CHAMPION, str(version))
    now = datetime.now(UTC).isoformat()
    client.set_model_version_tag(name, str(version), SINCE_TAG, now)
    decide(client, name, version, f"champion by {how}", reason)
    replaced = None if before is None else before.version
    if replaced == version:  # by a call that was killed, which may not have written it down
        replaced = _champion_before(numbers, version)
    _decide_replaced(client, name, replaced, by=version, how=how)
    return None if before is None else before.version


def rollback(client: MlflowClient, name: str, *, reason: str) -> int:
    """Make the champion before this one champion again; returns its version. Versions that were
    deleted or rolled back are passed over. Repeated rollbacks go further back. Raises DataError if
    there is none."""
    numbers = _champion_numbers(client, name)
    current = champion_of(client, name)
    version = _champion_before(numbers, None if current is None else current.version)
    if version is None:
        raise DataError(
            f"model: {name} has no earlier champion; `hapvr models promote VERSION` chooses "
            "one by hand"
        )
    # The alias comes last: a call that was killed has not gone back, so that repeating it goes back
    # once.
    decide(client, name, version, "champion by rollback", reason)
    if current is not None:
        _decide_replaced(client, name, current.version, by=version, how="rollback")
    client.set_registered_model_alias(name, CHAMPION, str(version))
    return version


def _champion_numbers(client: MlflowClient, name: str) -> dict[int, int]:
    """Version -> the number of its last promotion, of those that were ever promoted."""
    found = {}
    for row in list_versions(client, name):
        number = str(row["tags"].get(NUMBER_TAG, ""))
        if number.isdecimal():
            found[int(row["version"])] = int(number)
    return found


def _champion_before(numbers: Mapping[int, int], version: int | None) -> int | None:
    """The version that was champion before another; None if none was. version: without a number,
    as somebody else made it champion, or None: the last of all."""
    end = math.inf if version is None else numbers.get(version, math.inf)
    earlier = {one: number for one, number in numbers.items() if number < end}
    return max(earlier, key=lambda one: (earlier[one], one), default=None)


def _count_promotion(
    client: MlflowClient,
    name: str,
    version: int,
    *,
    before: Champion | None,
    numbers: Mapping[int, int],
) -> None:
    """Give a version the number after that of the champion. Versions with higher ones were rolled
    back, or their promotion was killed: no rollback leads to them."""
    last = max(numbers.values(), default=0)
    if before is not None and before.version in numbers:
        last = numbers[before.version]
    if before is not None and before.version == version and version in numbers:
        return
    for other, number in numbers.items():
        if number > last:
            client.delete_model_version_tag(name, str(other), NUMBER_TAG)
    client.set_model_version_tag(name, str(version), NUMBER_TAG, str(last + 1))


def _decide_replaced(
    client: MlflowClient, name: str, replaced: int | None, *, by: int, how: str
) -> None:
    """Write down on a version that another took its place, unless it says so already."""
    if replaced is None or replaced == by:
        return
    said = f"was champion; version {by} replaced it by {how}"
    if version_tags(client, name, replaced).get(DECISION_TAG) != said:
        decide(client, name, replaced, said)
