"""Automation as people leave it running: the daemon over a new project, with nobody at the UI."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hapvr.search.current import CURRENT
from hapvr.stages.training import tracker_of
from hapvr.tracking.champions import champion_of
from tests.conftest import small_settings
from tests.orchestration.servers import Servers, serving, wait_until

RUNS = """{ runsOrError(limit: 100) { ... on Runs { results {
  pipelineName status startTime endTime assetMaterializations { assetKey { path } partition } } } } }"""
ON_A_GPU = {
    *("whitening", "features", "training_views", "pseudo_labels"),
    *("similarity_model", "benchmark_scores", "frame_descriptors"),
}
FINISHED = {"SUCCESS", "FAILURE", "CANCELED"}


def ended_runs(servers: Servers) -> list[dict[str, Any]]:
    """All runs, if none is under way."""
    runs = list(servers.graphql(RUNS)["runsOrError"]["results"])
    return runs if all(run["status"] in FINISHED for run in runs) else []


def made_by(run: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Assets and partitions that a run has made."""
    return [(event["assetKey"]["path"][0], event["partition"]) for event in run["assetMaterializations"]]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_files_that_arrive_become_a_champion(clips_folder: Path, tmp_path: Path) -> None:
    """Switched on before there is anything: the daemon lists the files, takes each shard to features and training data once,
    trains when it is time, promotes the model, and indexes the collection by it. No run fails, no two runs share the GPU,
    views and labels come from one run, and afterwards it is quiet."""
    shutil.copytree(clips_folder, tmp_path / "clips")
    for path in tmp_path.rglob("*.mp4"):
        os.utime(path, (time.time() - 3600,) * 2)
    settings = small_settings(tmp_path / "clips", tmp_path / "data") | {"shard_videos": 50}
    settings["automation"] = {"enabled": True, "retrain_new_videos": 3, "watch_every_s": 5}
    with serving(tmp_path, settings) as servers:
        project = servers.project
        wait_until(lambda: project.root.exists("models/current.json"), "a trained model", timeout_s=900)
        tracker = tracker_of(project)
        wait_until(lambda: champion_of(tracker.client, "hapvr"), "a champion", timeout_s=300)
        wait_until(lambda: project.root.exists(CURRENT), "an index by the champion", timeout_s=300)
        runs = wait_until(lambda: ended_runs(servers), "the end of all runs", timeout_s=300)
        time.sleep(15)  # two or three more ticks of every sensor
        assert len(ended_runs(servers)) == len(runs)
    assert {run["status"] for run in runs} == {"SUCCESS"}, runs
    assert Counter(run["pipelineName"] for run in runs if run["pipelineName"] != "__ASSET_JOB") == {
        "find_videos": 1,
        "retrain": 1,
        "describe": len(project.root.list_folders("features")),
        "index": 1,
    }
    made = Counter(one for run in runs for one in made_by(run))
    assert set(made.values()) == {1}, made
    assert {asset for asset, _ in made} >= {
        "video_manifest",
        "features",
        "whitening",
        "registered_model",
        "search_index",
    }
    for run in runs:
        assets = {asset for asset, _ in made_by(run)}
        assert ("training_views" in assets) == ("pseudo_labels" in assets), assets
    times = sorted((run["startTime"], run["endTime"]) for run in runs if ON_A_GPU & {one for one, _ in made_by(run)})
    assert len(times) > 4
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(times)), times
    assert champion_of(tracker.client, "hapvr").version == 1  # type: ignore[union-attr]
