"""`hapvr models lineage`."""

from __future__ import annotations

import json
from pathlib import Path

from hapvr.tracking.champions import promote
from hapvr.tracking.lineage import LINEAGE_FILE
from hapvr.tracking.registry import register
from hapvr.tracking.runs import Tracker
from tests.commands.conftest import Call
from tests.tracking.empty_store import new_store

DIGEST = "0123456789abcdef" * 4


def test_lineage_of_the_champion_and_versions_of_a_shard(call: Call, tmp_path: Path) -> None:
    """Runs, commit and digests of the champion; the versions that a shard or a digest is in; both at once are refused."""
    tracker = Tracker(new_store(tmp_path), "tests")
    run = tracker.start("run", name="run", params={}, tags={"git.revision": "commit"})
    record = {"data_digests": {"training_views/own-train-00000": DIGEST}, "weights": {"backbone": {"source": "file"}}}
    tracker.text(run, json.dumps(record), LINEAGE_FILE)
    register(tracker, "hapvr", run_id=run, model_uri=f"runs:/{run}/model", target=0.5, tags={"dagster.run_id": "made"})
    address = ("--tracking-uri", tracker.uri)
    assert call("models", "lineage", *address).code == 1  # no champion yet
    promote(tracker.client, "hapvr", 1, reason="first")
    shown = call("models", "lineage", *address).out
    for text in ("version 1 (challenger, champion)", run, "made", "commit", "file weights", DIGEST):
        assert text in shown
    for data in ("own-train-00000", DIGEST[:12]):
        (found,) = call("models", "lineage", "--data", data, *address, "--json").json["versions"]
        assert found["version"] == 1
        assert found["data"] == record["data_digests"]
    assert (
        "no version of hapvr was trained on other-train-00000"
        in call("models", "lineage", "--data", "other-train-00000", *address).out
    )
    assert call("models", "lineage", "1", "--data", DIGEST, *address).code == 2
