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
from hapvr.scorer.bundle import load_bundle
from hapvr.tracking.packaging import log_model
from hapvr.tracking.registry import register
from hapvr.tracking.runs import Tracker
from hapvr.tracking.store import pinned_uri, registered_bundle
from tests.conftest import CHECKOUT
from tests.scorer.bundles import make_bundle, write_scenes
from tests.tracking.test_training_tracking import mlflow_server


def start_score(*arguments: str) -> subprocess.Popen[str]:
    """`hapvr score` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", "from hapvr.cli import main; main()", "score", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_a_server_gives_the_bundle_without_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To eight processes at once, who share a cache, and who all give the answer of one alone. Then all files of the bundle,
    also where the cache is damaged; a version that is not there, and other registries, with what to do."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bundle = make_bundle(tmp_path, onnx=True)
    clips = [write_scenes(tmp_path / f"{name}.mp4", scenes) for name, scenes in (("a", [0, 1, 2, 3]), ("b", [9, 2, 3]))]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with mlflow_server(tmp_path, port) as address:
        tracker = Tracker(address, "hapvr")
        run_id = tracker.start("run", name="run", params={}, tags={})
        source = log_model(tracker, run_id, bundle)
        version = register(tracker, "hapvr", run_id=run_id, model_uri=source, target=0.5, tags={})
        tracker.client.set_registered_model_alias("hapvr", "champion", str(version))
        (alone,) = load_bundle(bundle, engine="onnx").score_pairs([(clips[0], clips[1])])
        scored = [start_score(*map(str, clips), "--tracking-uri", address, "--json") for _ in range(8)]
        for process in scored:
            said, problem = process.communicate(timeout=300)
            assert process.returncode == 0, problem
            (pair,) = json.loads(said)["pairs"]
            assert (pair["similarity"], pair["error"]) == (pytest.approx(alone.similarity, abs=1e-6), "")
        (kept,) = (tmp_path / "cache" / "hapvr" / "models").iterdir()  # no part of a download is left
        monkeypatch.setattr("hapvr.tracking.store.is_installed", lambda package: False)
        for damage in (lambda file: None, Path.unlink, lambda file: file.write_bytes(b"")):
            damage(next(kept.rglob("whitening.safetensors")))
            found = registered_bundle("models:/hapvr@champion", address)
            assert found.is_relative_to(kept)
            for file in bundle.rglob("*"):
                if file.is_file():
                    assert file_sha256(found / file.relative_to(bundle)) == file_sha256(file)
        with pytest.raises(MissingPartError, match=r"models:/hapvr/9 cannot be had.*a server that has this version"):
            registered_bundle("models:/hapvr/9", address)
        assert pinned_uri("models:/hapvr@champion", address) == f"models:/hapvr/{version}"
        with pytest.raises(DataError, match=r"models:/hapvr@absent is not in the registry"):
            pinned_uri("models:/hapvr@absent", address)
    with pytest.raises(DataError, match="no MLflow server answers"):
        registered_bundle("models:/hapvr@champion", address)
