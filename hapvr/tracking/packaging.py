"""The bundle as a model of an MLflow run: code, requirements, signature, example."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import mlflow
import pandas as pd
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import AnyType, Array, Object, Property

import hapvr
from hapvr.errors import DataError
from hapvr.scorer.calibration import SERVED_PRECISION
from hapvr.scorer.description import CARD_FILE
from hapvr.tracking.champions import MAX_DESCRIPTION_CHARACTERS
from hapvr.tracking.registry import find_version, registry_client
from hapvr.tracking.runs import Tracker

REQUIREMENTS = (
    "av", "decord", "filelock", "matplotlib", "mlflow", "numpy", "pebble", "pillow", "polars", "psutil",
    "pyarrow", "pydantic", "pyyaml", "safetensors", "timm", "torch", "torchvision", "yt-dlp",
)  # fmt: skip
CARD_TAG = "hapvr.model_card"
SEGMENT_COLUMNS = ("query_start_s", "query_end_s", "reference_start_s", "reference_end_s", "score")
TEXT, NUMBER = DataType.string, DataType.double


def signature() -> ModelSignature:
    """Columns of request and answer, and the parameters of a request. A limit of 0 keeps the model's own.

    `references` may hold anything: as a list of texts MLflow would cut every name to one character if one of them is null.
    """
    segment = Object([Property(name, NUMBER) for name in SEGMENT_COLUMNS])
    return ModelSignature(
        inputs=Schema(
            [
                ColSpec(TEXT, "query"),
                ColSpec(TEXT, "reference", required=False),
                ColSpec(AnyType(), "references", required=False),
            ]
        ),
        outputs=Schema(
            [
                ColSpec(TEXT, "query"),
                ColSpec(TEXT, "reference"),
                ColSpec(NUMBER, "similarity"),
                ColSpec(NUMBER, "probability"),
                ColSpec(NUMBER, "threshold"),
                ColSpec(TEXT, "error"),
                ColSpec(TEXT, "warning"),
                ColSpec(Array(segment), "segments", required=False),
            ]
        ),
        params=ParamSchema(
            [
                ParamSpec("segments", DataType.boolean, False),
                ParamSpec("precision", NUMBER, SERVED_PRECISION),
                ParamSpec("max_pairs", DataType.long, 0),
                ParamSpec("max_bytes", DataType.long, 0),
                ParamSpec("max_frames", DataType.long, 0),
                ParamSpec("video_timeout_s", NUMBER, 0.0),
                ParamSpec("request_timeout_s", NUMBER, 0.0),
            ]
        ),
    )


def log_model(tracker: Tracker, run_id: str, bundle: Path) -> str:
    """Log the bundle as a pyfunc model of the run, with this package's code and requirements; returns its `models:/` URI."""
    mlflow.set_tracking_uri(tracker.uri)
    mlflow.set_registry_uri(tracker.uri)
    with mlflow.start_run(run_id=run_id):
        info = mlflow.pyfunc.log_model(
            name="model",
            python_model=str(Path(__file__).with_name("pyfunc_model.py")),
            artifacts={"bundle": str(bundle)},
            code_paths=[str(Path(hapvr.__file__).parent)],
            pip_requirements=[f"{package}=={version(package)}" for package in REQUIREMENTS],
            signature=signature(),
            input_example=pd.DataFrame(
                {"query": ["clips/a.mp4", "clips/a.mp4"], "reference": ["clips/b.mp4", "https://example.org/c.mp4"]}
            ),
        )
    return str(info.model_uri)


def link_card(tracker: Tracker, name: str, version: int, run_id: str, *, summary: str) -> None:
    """Name the run's model card in the version's tags and description, once, with a summary of it below. summary: Markdown."""
    place = f"runs:/{run_id}/{CARD_FILE}"
    description = str(tracker.client.get_model_version(name, str(version)).description or "")
    if place not in description:
        parts = [description, f"Model card: {place}, or `hapvr models card {version}`", summary]
        text = "\n\n".join(part for part in parts if part)
        tracker.client.update_model_version(name, str(version), description=text[:MAX_DESCRIPTION_CHARACTERS])
    tracker.client.set_model_version_tag(name, str(version), CARD_TAG, place)


def read_card(name: str, version: str, tracking_uri: str) -> str:
    """The model card of a version, given by its number or an alias. Raises DataError if there is no such version or card."""
    found = find_version(registry_client(tracking_uri), name, version)
    if CARD_TAG not in found.tags:
        raise DataError(
            f"model: {name} version {found.version} has no model card; it was registered before there were any"
        )
    mlflow.set_tracking_uri(tracking_uri)
    return str(mlflow.artifacts.load_text(found.tags[CARD_TAG]))
