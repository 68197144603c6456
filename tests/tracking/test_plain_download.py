"""A registered model from an MLflow server by plain HTTP, as an installation without MLflow fetches it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hapvr.errors import DataError, MissingPartError
from hapvr.provenance import file_sha256
from hapvr.tracking.packaging import log_model
from hapvr.tracking.registry import register
from hapvr.tracking.runs import Tracker
from hapvr.tracking.store import pinned_uri, registered_bundle
from tests.scorer.bundles import make_bundle, write_scenes
from tests.tracking.test_training_tracking import mlflow_server


@pytest.mark.slow
def test_a_server_gives_the_bundle_without_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files of the bundle, once; a version that is not there, and other registries, with what to do."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bundle = make_bundle(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with mlflow_server(tmp_path, port) as address:
        tracker = Tracker(address, "hapvr")
        run_id = tracker.start("run", name="run", params={}, tags={})
        source = log_model(tracker, run_id, bundle)
        version = register(tracker, "hapvr", run_id=run_id, model_uri=source, target=0.5, tags={})
        tracker.client.set_registered_model_alias("hapvr", "champion", str(version))
        monkeypatch.setattr("hapvr.tracking.store.is_installed", lambda package: False)
        found = registered_bundle("models:/hapvr@champion", address)
        assert found.is_relative_to(tmp_path / "cache")
        for file in bundle.rglob("*"):
            if file.is_file():
                assert file_sha256(found / file.relative_to(bundle)) == file_sha256(file)
        with pytest.raises(MissingPartError, match=r"models:/hapvr/9 cannot be had.*a server that has this version"):
            registered_bundle("models:/hapvr/9", address)
        assert pinned_uri("models:/hapvr@champion", address) == f"models:/hapvr/{version}"
        with pytest.raises(DataError, match=r"models:/hapvr@absent is not in the registry"):
            pinned_uri("models:/hapvr@absent", address)
        assert_eight_at_once_answer_as_one(tmp_path, address)
    with pytest.raises(DataError, match="no MLflow server answers"):
        registered_bundle("models:/hapvr@champion", address)


def assert_eight_at_once_answer_as_one(folder: Path, address: str) -> None:
    """Eight `hapvr score` that fetch and convert the same model into the same empty caches, and then one alone."""
    clips = [write_scenes(folder / name, scenes) for name, scenes in (("a.mp4", [0, 1, 2]), ("b.mp4", [1, 2, 5]))]
    command = [sys.executable, "-c", "from hapvr.cli import main; main()", "score", *map(str, clips), "--json"]
    command += ["--model", "models:/hapvr@champion", "--tracking-uri", address]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "empty"), "HAPVR_CACHE": str(folder / "converted")}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    together = [process.communicate(timeout=300) for process in [start() for _ in range(8)]]
    alone, _ = start().communicate(timeout=300)
    assert json.loads(alone)["pairs"][0]["error"] == ""
    for answer, said in together:
        assert answer == alone, said
