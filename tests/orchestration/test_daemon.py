"""`make ui` over an empty project, which the daemon takes to a champion and a trained version,
through a training that is killed and retried."""

import itertools
import os
import shutil
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from assets.project import PROCESS_TAG
from hapvr.registry.champions import champion_of
from hapvr.search.current import CURRENT
from hapvr.steps.training import tracker_of
from tests.orchestration.conftest import ASSETS
from tests.orchestration.servers import Servers, packaged_settings, serving, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

RUNS = """query Runs($filter: RunsFilter) { runsOrError(filter: $filter) { ... on Runs { results {
  runId status rootRunId tags { key value } pipelineName startTime endTime
  assetMaterializations { assetKey { path } partition } } } } }"""
LAUNCH = """mutation Launch($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
TERMINATE = """mutation Terminate($run: String!) { terminateRun(runId: $run) { __typename } }"""


ON_A_GPU = {
    "whitening",
    "features",
    "training_views",
    "pseudo_labels",
    "similarity_model",
    "benchmark_scores",
    "frame_descriptors",
}
FINISHED = {"SUCCESS", "FAILURE", "CANCELED"}


@pytest.fixture(scope="module")
def servers(clips_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """All servers and the daemon over a new project, with automation switched on before there is
    anything."""
    folder = tmp_path_factory.mktemp("ui")
    (folder / "clips").mkdir()
    for name in (*(f"clip {number:02d}.mp4" for number in range(8)), "text.mp4"):
        shutil.copy(clips_folder / name, folder / "clips")
        os.utime(folder / "clips" / name, (time.time() - 3600,) * 2)

    settings = packaged_settings(folder / "clips", folder / "data")
    settings["automation"] = {"enabled": True, "retrain_new_videos": 3, "watch_every_s": 10}
    with serving(folder, settings) as running_servers:
        yield running_servers


def runs_of(servers: Servers, **filters: object) -> list[dict[str, Any]]:
    """Runs that Dagster has, the latest first."""
    return list(servers.graphql(RUNS, filter=filters)["runsOrError"]["results"])


def ended_runs(servers: Servers) -> list[dict[str, Any]]:
    """All runs, if none is under way."""
    runs = runs_of(servers)
    return runs if all(run["status"] in FINISHED for run in runs) else []


def made_by(run: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Assets and partitions that a run has made."""
    return [
        (event["assetKey"]["path"][0], event["partition"]) for event in run["assetMaterializations"]
    ]


def test_the_servers_listen_on_loopback_only(servers: Servers) -> None:
    """Each of them; what a foreign page could send to Dagster is refused."""
    ours = {process.pid for process in servers.process.children(recursive=True)}
    listening = [
        one
        for one in psutil.net_connections("inet")
        if one.status == psutil.CONN_LISTEN and one.pid in ours
    ]
    assert {one.laddr.ip for one in listening} == {"127.0.0.1"}
    assert len(listening) >= 3
    with pytest.raises(urllib.error.HTTPError, match="403"):  # a mutation by GET
        urllib.request.urlopen(f"{servers.dagster}/graphql?query=mutation{{x}}", timeout=60)
    line = f"Dagster: {servers.dagster}  MLflow: {servers.mlflow}  Search: {servers.search}\n"
    wait_until(
        lambda: line in (servers.folder / "ui.log").read_text(encoding="utf-8"),
        "the addresses",
        timeout_s=60,
    )


ASKS_FIRST = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "content-type",
}


@pytest.mark.parametrize(
    ("method", "headers"),
    [("OPTIONS", ASKS_FIRST), ("POST", {"Content-Type": "text/plain"})],
    ids=["asks first", "needs no question"],
)
def test_mlflow_refuses_foreign_pages(
    servers: Servers, method: str, headers: dict[str, str]
) -> None:
    """Its own guard does not know GraphQL, for which a browser asks first; what needs no question
    is not understood."""
    foreign = headers | {"Origin": "http://evil.example"}
    request = urllib.request.Request(f"{servers.mlflow}/graphql", b"{}", foreign, method=method)
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(request, timeout=60)


@dataclass(frozen=True)
class Flowed:
    """What the daemon made of files that arrived, while the process of the training's run was
    killed and another re-training waited."""

    run_id: str
    """the run that was killed"""
    waiting: dict[str, Any]
    """the other re-training, meanwhile"""
    runs: list[dict[str, Any]]
    """all that there were, once it was quiet"""
    num_runs_later: int
    """after one more tick of every sensor"""

    def of(self, status: str) -> list[dict[str, Any]]:
        """Re-trainings that ended so."""
        return [
            run for run in self.runs if run["pipelineName"] == "retrain" and run["status"] == status
        ]


@pytest.fixture(scope="module")
def flowed(servers: Servers) -> Flowed:
    """The daemon lists the files, takes each shard to features and training data, makes the
    untrained baseline champion, trains and registers a model when it is time, and indexes the
    collection by the champion."""
    project = servers.project
    (first,) = wait_until(
        lambda: runs_of(servers, pipelineName="retrain"), "the training", timeout_s=900
    )
    run_id = first["runId"]
    wait_until(lambda: trainer_of(run_id), "the trainer", timeout_s=300)
    waiting_id = launch_retraining(servers)
    (first,) = runs_of(servers, runIds=[run_id])
    kill_process_of(first)
    (waiting,) = runs_of(servers, runIds=[waiting_id])
    servers.graphql(TERMINATE, run=waiting_id)
    client = tracker_of(project).client
    wait_until(
        lambda: len(client.search_model_versions("name = 'hapvr'")) == 2, "a trained version"
    )
    wait_until(lambda: project.root.exists(CURRENT), "an index by the champion", timeout_s=300)
    runs = wait_until(lambda: ended_runs(servers), "the end of all runs", timeout_s=300)
    time.sleep(12)  # one more tick of every sensor at least
    return Flowed(run_id, waiting, runs, len(ended_runs(servers)))


def trainer_of(run_id: str) -> psutil.Process | None:
    """The process that trains for a run."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "hapvr.trainer" in words and run_id in " ".join(words):
            return process

    return None


def launch_retraining(servers: Servers) -> str:
    """The run that a person asks for."""
    selector = {
        "repositoryLocationName": "hapvr",
        "repositoryName": "__repository__",
        "pipelineName": "retrain",
    }
    params = {"selector": selector, "runConfigData": {}, "mode": "default"}
    launched = servers.graphql(LAUNCH, params=params)["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    return str(launched["run"]["runId"])


def kill_process_of(run: dict[str, Any]) -> None:
    """Kill the process that executes a run."""
    tags = {str(tag["key"]): str(tag["value"]) for tag in run["tags"]}
    psutil.Process(int(tags[PROCESS_TAG].rpartition("@")[2].partition(":")[0])).kill()


def test_a_second_retraining_waits_in_the_queue(flowed: Flowed) -> None:
    assert flowed.waiting["status"] == "QUEUED"


def test_afterwards_it_is_quiet(flowed: Flowed) -> None:
    assert flowed.num_runs_later == len(flowed.runs)


def test_only_the_killed_run_fails(flowed: Flowed) -> None:
    """Of the jobs; the files are listed once."""
    named = Counter(
        (run["pipelineName"], run["status"])
        for run in flowed.runs
        if run["pipelineName"] != "__ASSET_JOB"
    )
    assert named == {
        ("find_videos", "SUCCESS"): 1,
        ("retrain", "FAILURE"): 1,
        ("retrain", "CANCELED"): 1,
        ("retrain", "SUCCESS"): 1,
    }


def test_no_run_of_assets_fails(flowed: Flowed) -> None:
    runs = [run for run in flowed.runs if run["pipelineName"] == "__ASSET_JOB"]
    assert {run["status"] for run in runs} == {"SUCCESS"}, runs


def test_a_retry_finishes_the_killed_run(flowed: Flowed) -> None:
    (retry,) = flowed.of("SUCCESS")
    assert retry["rootRunId"] == flowed.run_id


def test_every_asset_is_made_of_each_shard_once(flowed: Flowed) -> None:
    materializations = Counter(made for run in flowed.runs for made in made_by(run))
    assert set(materializations.values()) == {1}, materializations
    assert {asset for asset, _ in materializations} == set(ASSETS)


def test_views_and_labels_come_from_one_run(flowed: Flowed) -> None:
    for run in flowed.runs:
        assets = {asset for asset, _ in made_by(run)}
        assert ("training_views" in assets) == ("pseudo_labels" in assets), assets


def test_no_two_runs_share_the_gpu(flowed: Flowed) -> None:
    times = sorted(
        (run["startTime"], run["endTime"])
        for run in flowed.runs
        if ON_A_GPU & {asset for asset, _ in made_by(run)}
    )
    assert len(times) > 4
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(times)), times


def test_a_training_that_was_killed_and_retried_is_one_mlflow_run(
    servers: Servers, flowed: Flowed
) -> None:
    tracker = tracker_of(servers.project)
    of_the_run = f"tags.`hapvr.run_key` = '{flowed.run_id}'"
    tracked = tracker.client.search_runs([tracker.experiment_id], filter_string=of_the_run)
    assert [run.info.status for run in tracked] == ["FINISHED"]


def test_what_was_trained_is_not_promoted_while_the_gate_is_off(
    servers: Servers, flowed: Flowed
) -> None:
    """The untrained baseline stays champion."""
    assert flowed.of("SUCCESS")
    assert champion_of(tracker_of(servers.project).client, "hapvr").version == 1
