"""The bundle as a model of an MLflow run: code, requirements, signature."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import mlflow
import pandas as pd
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, Schema

import hapvr
from hapvr.tracking.runs import Tracker

REQUIREMENTS = (
    "av", "decord", "filelock", "matplotlib", "mlflow", "numpy", "pebble", "pillow", "polars", "psutil",
    "pyarrow", "pydantic", "pyyaml", "safetensors", "timm", "torch", "torchvision",
)  # fmt: skip


def log_model(tracker: Tracker, run_id: str, bundle: Path) -> str:
    """Log the bundle as a pyfunc model of the run, with this package's code and requirements; returns its `models:/` URI."""
    mlflow.set_tracking_uri(tracker.uri)
    mlflow.set_registry_uri(tracker.uri)
    text = DataType.string
    with mlflow.start_run(run_id=run_id):
        info = mlflow.pyfunc.log_model(
            name="model",
            python_model=str(Path(__file__).with_name("pyfunc_model.py")),
            artifacts={"bundle": str(bundle)},
            code_paths=[str(Path(hapvr.__file__).parent)],
            pip_requirements=[f"{package}=={version(package)}" for package in REQUIREMENTS],
            signature=ModelSignature(
                inputs=Schema([ColSpec(text, "query"), ColSpec(text, "reference")]),
                outputs=Schema(
                    [
                        ColSpec(text, "query"),
                        ColSpec(text, "reference"),
                        ColSpec(DataType.double, "similarity"),
                        ColSpec(text, "error"),
                    ]
                ),
            ),
            input_example=pd.DataFrame({"query": ["a.mp4"], "reference": ["b.mp4"]}),
        )
    return str(info.model_uri)
