"""A bundle as a pyfunc model of MLflow, with the code that scores, its requirements, a signature
and an example."""

import shutil
import tempfile
from dataclasses import fields
from importlib.metadata import version as installed_version
from pathlib import Path

import mlflow
import pandas as pd
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import AnyType, Array, Object, Property

import hapvr
from hapvr.registry.runs import Tracker
from hapvr.scorer import DEFAULT_PRECISION
from hapvr.scorer.segments import Segment

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
"""Packages that the model needs, in the versions installed here."""

ROOMS = ("data", "model", "networks", "scorer", "video")
"""Folders of this package that scoring needs. A server takes each file of a model in a request of
its own, and all folders together have three times as many."""

OUTPUT_TYPES = {
    "query": DataType.string,
    "reference": DataType.string,
    "similarity": DataType.double,
    "probability": DataType.double,
    "threshold": DataType.double,
    "verdict": DataType.string,
    "error": DataType.string,
    "warning": DataType.string,
}

EXAMPLE = {
    "query": ["clips/a.mp4", "clips/a.mp4"],
    "reference": ["clips/b.mp4", "https://example.org/c.mp4"],
}


def log_model(tracker: Tracker, run_id: str, bundle: Path) -> str:
    """Log the bundle as a pyfunc model of the run; returns its `models:/` URI."""
    mlflow.set_tracking_uri(tracker.uri)
    mlflow.set_registry_uri(tracker.uri)
    with tempfile.TemporaryDirectory() as folder, mlflow.start_run(run_id=run_id):
        info = mlflow.pyfunc.log_model(
            name="model",
            python_model=str(Path(__file__).with_name("pyfunc_model.py")),
            artifacts={"bundle": str(bundle)},
            code_paths=[str(_copy_code(Path(folder)))],
            pip_requirements=[
                f"{package}=={installed_version(package)}" for package in REQUIREMENTS
            ],
            signature=_signature(),
            input_example=pd.DataFrame(EXAMPLE),
        )

    return str(info.model_uri)


def _copy_code(folder: Path) -> Path:
    """Copy the code that scores into a folder; returns the place of the package there."""
    package = Path(hapvr.__file__).parent
    copy = folder / package.name
    copy.mkdir()
    for module in package.glob("*.py"):
        shutil.copy(module, copy)
    for room in ROOMS:
        shutil.copytree(package / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))

    return copy


def _signature() -> ModelSignature:
    """What the model takes and gives, see `hapvr.registry.pyfunc_model`."""
    inputs = [
        ColSpec(DataType.string, "query"),
        ColSpec(DataType.string, "reference", required=False),
        # A list of texts of which one is null would come with each name cut to one character.
        ColSpec(AnyType(), "references", required=False),
    ]
    segment = Object([Property(each.name, DataType.double) for each in fields(Segment)])
    outputs = [ColSpec(kind, name) for name, kind in OUTPUT_TYPES.items()]
    outputs.append(ColSpec(Array(segment), "segments", required=False))
    params = [
        ParamSpec("segments", DataType.boolean, False),
        ParamSpec("precision", DataType.double, DEFAULT_PRECISION),
    ]
    return ModelSignature(Schema(inputs), Schema(outputs), ParamSchema(params))
