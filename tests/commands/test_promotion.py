"""`hapvr models promote | rollback`."""

from __future__ import annotations

from pathlib import Path

from hapvr.tracking.champions import promote
from hapvr.tracking.registry import register
from hapvr.tracking.runs import Tracker
from tests.commands.conftest import Call
from tests.tracking.empty_store import new_store


def test_promote_and_rollback_move_the_alias_and_say_what_was_before(call: Call, tmp_path: Path) -> None:
    """Version 2 by hand, back to 1, no further: exit 1 with the way out; a version that is not there: exit 1."""
    tracker = Tracker(new_store(tmp_path), "tests", artifacts=tmp_path / "artifacts")
    for number in range(2):
        run = tracker.start(f"run-{number}", name=f"run {number}", params={}, tags={})
        register(tracker, "hapvr", run_id=run, model_uri=f"runs:/{run}/model", target=0.5, tags={})
    promote(tracker.client, "hapvr", 1, reason="first")
    address = ("--tracking-uri", tracker.uri, "--json")
    done = call("models", "promote", "2", "--reason", "reviewed", *address)
    assert done.json == {"name": "hapvr", "champion": 2, "before": 1}
    assert call("models", "rollback", *address).json == {"name": "hapvr", "champion": 1}
    refused = call("models", "rollback", *address)
    assert refused.code == 1
    assert "hapvr models promote VERSION" in refused.error
    assert call("models", "promote", "9", *address).code == 1
