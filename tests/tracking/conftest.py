"""A registered model of a small bundle, and clips for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mlflow
import pytest

from hapvr.scorer.calibration import fit_calibration
from hapvr.tracking.packaging import log_model
from hapvr.tracking.runs import Tracker
from tests.scorer.bundles import make_bundle, write_scenes
from tests.tracking.empty_store import new_store


@dataclass(frozen=True)
class Registered:
    """uri: of the registry, where models:/hapvr@champion is the model in `bundle`; clips: a, b, copy and bad .mp4."""

    uri: str
    bundle: Path
    clips: Path


@pytest.fixture(scope="session")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Registered:
    """A version with calibration, alias champion, in an MLflow store of its own."""
    folder = tmp_path_factory.mktemp("registered")
    fitted = fit_calibration([0.0] * 10 + [-0.002] * 10, [-0.003] * 10 + [-0.004] * 20, source={}, frame_threshold=0.7)
    bundle = make_bundle(folder, calibration=fitted, card="# A card\n")
    clips = folder / "clips"
    write_scenes(clips / "a.mp4", [0, 1, 2, 3, 4, 5])
    write_scenes(clips / "b.mp4", [20, 21, 22, 23])
    write_scenes(clips / "copy.mp4", [30, 31, 32, 33, 2, 3, 4, 34, 35])
    (clips / "bad.mp4").write_text("this is no video")
    (clips / "cut.mp4").write_bytes((clips / "a.mp4").read_bytes()[:2000])
    tracker = Tracker(new_store(folder), "hapvr", artifacts=folder / "artifacts")
    run_id = tracker.start("run", name="run", params={}, tags={})
    source = log_model(tracker, run_id, bundle)
    tracker.client.create_registered_model("hapvr")
    version = tracker.client.create_model_version("hapvr", source=source, run_id=run_id)
    tracker.client.set_registered_model_alias("hapvr", "champion", version.version)
    return Registered(tracker.uri, bundle, clips)


@pytest.fixture
def model(registered: Registered) -> mlflow.pyfunc.PyFuncModel:
    """The model as a caller loads it."""
    mlflow.set_tracking_uri(registered.uri)
    mlflow.set_registry_uri(registered.uri)
    return mlflow.pyfunc.load_model("models:/hapvr@champion")
