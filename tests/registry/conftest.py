"""A registered model of a small bundle with clips for it, and an MLflow server that all tests
share."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import mlflow
import pytest

from hapvr.registry.champions import promote
from hapvr.registry.logged_model import log_model
from hapvr.registry.runs import Tracker
from hapvr.registry.versions import register
from hapvr.scorer.calibration import fit_calibration
from pipelines.ui import free_port
from tests.registry.empty_store import mlflow_server, new_store
from tests.scorer.bundles import make_bundle


@dataclass(frozen=True)
class Registered:
    """uri: of the registry, where models:/hapvr@champion is the model in `bundle`; clips: a, b,
    copy and bad .mp4."""

    uri: str
    bundle: Path
    clips: Path


@pytest.fixture(scope="session")
def registered(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Registered:
    """A version with calibration, alias champion, in an MLflow store of its own."""
    folder = tmp_path_factory.mktemp("registered")
    fitted = fit_calibration(
        [0.0] * 10 + [-0.002] * 10, [-0.003] * 10 + [-0.004] * 20, source={}, frame_threshold=0.7
    )
    bundle = make_bundle(folder, calibration=fitted, card="# A card\n")
    tracker = Tracker(new_store(folder), "hapvr")
    register_champion(tracker, bundle)
    return Registered(tracker.uri, bundle, scenes)


def register_champion(tracker: Tracker, bundle: Path) -> int:
    """The number of a version with the files of a bundle, the champion of `hapvr`."""
    run_id = tracker.start("run", name="run", params={}, tags={})
    source = log_model(tracker, run_id, bundle)
    version = register(tracker, "hapvr", run_id=run_id, model_uri=source, target=0.5, tags={})
    promote(tracker.client, "hapvr", version, reason="the first")
    return version


def add_version(tracker: Tracker, name: str, *, source: str = "") -> int:
    """A version of a run of its own."""
    run = tracker.start(token_hex(8), name="run", params={}, tags={})
    return register(
        tracker, name, run_id=run, model_uri=source or f"runs:/{run}/model", target=0.5, tags={}
    )


@pytest.fixture(scope="session")
def model(registered: Registered) -> mlflow.pyfunc.PyFuncModel:
    """The model as a caller loads it."""
    mlflow.set_tracking_uri(registered.uri)
    mlflow.set_registry_uri(registered.uri)
    return mlflow.pyfunc.load_model("models:/hapvr@champion")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server."""
    with mlflow_server(tmp_path_factory.mktemp("mlflow server"), free_port()) as address:
        yield address


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a SQLite store; tests take names of models and runs of their own."""
    return new_store(tmp_path_factory.mktemp("mlflow store"))


@pytest.fixture
def tracker(store: str) -> Tracker:
    """A SQLite store."""
    return Tracker(store, "tests")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A model name that no other test uses."""
    return str(request.node.originalname)
