"""From versions to data and back, in a real store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hapvr.errors import ArgumentError, DataError
from hapvr.tracking.lineage import LINEAGE_FILE, data_digest, lineage_of, versions_from
from hapvr.tracking.registry import register
from hapvr.tracking.runs import Tracker
from tests.tracking.empty_store import new_store

OLD, NEW = "a" * 64, "b" * 64
DATA = (
    {"whitening": "c" * 64, "training_views/own-train-00000": OLD},
    {"whitening": "c" * 64, "training_views/own-train-00000": OLD, "training_views/x-00000": NEW},
)


@pytest.fixture
def tracker(tmp_path: Path) -> Tracker:
    """Versions 1 and 2, the second with a shard more and the alias challenger, and 3 whose run has lost its record."""
    tracker = Tracker(new_store(tmp_path), "tests")
    for number, data in enumerate((*DATA, None), start=1):
        run = tracker.start(f"run-{number}", name=f"run {number}", params={}, tags={"git.revision": f"commit {number}"})
        if data:
            record = {"data_digests": data, "weights": {"backbone": {"source": "random"}}, "environment": {}}
            tracker.text(run, json.dumps(record), LINEAGE_FILE)
        tags = {"dagster.run_id": f"dagster {number}"}
        register(tracker, "hapvr", run_id=run, model_uri=f"runs:/{run}/model", target=0.5, tags=tags)
    tracker.client.set_registered_model_alias("hapvr", "challenger", "2")
    return tracker


def test_a_version_leads_to_its_runs_code_and_data(tracker: Tracker) -> None:
    """By number and by alias; one that lost its record says so."""
    found = lineage_of("hapvr", "challenger", tracker.uri)
    assert found == lineage_of("hapvr", "2", tracker.uri)
    assert (found.version, found.aliases, found.dagster_run) == (2, ("challenger",), "dagster 2")
    assert tracker.client.get_run(found.mlflow_run).data.tags["git.revision"] == found.revision == "commit 2"
    assert found.data == DATA[1]
    assert found.weights == {"backbone": "random"}
    lost = lineage_of("hapvr", "3", tracker.uri)
    assert LINEAGE_FILE in lost.lost
    assert not lost.data
    with pytest.raises(DataError, match="no hapvr version 9"):
        lineage_of("hapvr", "9", tracker.uri)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "versions"),
    [
        ("own-train-00000", {3: 0, 2: 1, 1: 1}),
        ("training_views/own-train-00000", {3: 0, 2: 1, 1: 1}),
        ("x-00000", {3: 0, 2: 1}),
        ("whitening", {3: 0, 2: 1, 1: 1}),
        (NEW, {3: 0, 2: 1}),
        (OLD[:8].upper(), {3: 0, 2: 1, 1: 1}),
        ("d" * 64, {3: 0}),
    ],
)
def test_data_leads_to_the_versions_that_read_it(tracker: Tracker, data: str, versions: dict[int, int]) -> None:
    """Newest first, each with the parts that match; a version of which nothing is known is always among them."""
    found = versions_from("hapvr", data, tracker.uri)
    assert {row.version: len(row.data) for row in found} == versions
    assert [row.version for row in found] == list(versions)


def test_a_short_text_that_is_no_shard_is_refused(tracker: Tracker) -> None:
    """So that a mistyped digest is not taken for data that nothing was trained on; without a model there is no answer."""
    with pytest.raises(ArgumentError, match=r"no shard of any version.* 8 characters"):
        versions_from("hapvr", OLD[:7], tracker.uri)
    with pytest.raises(DataError, match="no model named other"):
        versions_from("other", "own-train-00000", tracker.uri)


def test_digest_of_all_data_does_not_go_by_order() -> None:
    """The same parts in another order are the same data; another part is not."""
    assert data_digest(DATA[1]) == data_digest(dict(reversed(DATA[1].items())))
    assert data_digest(DATA[0]) != data_digest(DATA[1])
