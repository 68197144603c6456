"""Shards as jobs of a Ray cluster of two nodes on this machine, chosen by DAGSTER_HOME alone."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import psutil
import pytest

from assets.project import PROCESS_TAG, SHARDS
from hapvr.data.filesystem import DataRoot
from hapvr.steps.project import Project
from pipelines.ui import free_port
from tests.conftest import CHECKOUT, small_settings, write_settings
from tests.orchestration.conftest import NewDatabase
from tests.orchestration.servers import wait_until
from tests.steps.object_store import empty_bucket

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
MADE = ("videos", "frames", "features", "training_views", "pseudo_labels")
BIN = Path(sys.executable).parent
RESOURCES = {"ingest": {"num_cpus": 2.0}, "extract": {"num_cpus": 2.0, "num_gpus": 0.5}}
KEYS = ("own-train-00000", "own-test-00000")


@dataclass(frozen=True)
class Cluster:
    """What a Dagster daemon needs to know of a Ray cluster, what its nodes were told, and the
    second one's process."""

    address: str
    environment: Mapping[str, str]
    nodes: list[subprocess.Popen[bytes]]


def family_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """A process and all it started; empty if it has ended."""
    if process.poll() is not None:
        return []
    parent = psutil.Process(process.pid)
    return [parent, *parent.children(recursive=True)]


def end_family(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all it started; kills what does not end."""
    family = family_of(process)[1:]
    process.terminate()
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()

    for child in psutil.wait_procs(family, timeout=30)[1]:
        child.kill()


@pytest.fixture
def data(small_project: Project) -> Iterator[str]:
    """The URL of a data root with a manifest and whitening, in a bucket whose server the
    environment names."""
    local_folder = small_project.root.local
    with empty_bucket() as url:
        root = DataRoot(url)
        for path in local_folder.rglob("*.*"):
            name = path.relative_to(local_folder).as_posix()
            if path.is_file() and name.split("/")[0] not in MADE:
                with root.write(name) as stream:
                    stream.write(path.read_bytes())

        yield url


@pytest.fixture
def cluster(data: str, new_database: NewDatabase) -> Iterator[Cluster]:
    """Two nodes, each of two CPUs and a GPU that is not there, that reach the data; only who knows
    the token may use them."""
    port = free_port()
    dashboard_port = free_port()
    environment = {
        "HAPVR_DAGSTER_DATABASE": new_database("ray"),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    nodes: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> None:
        command = [
            str(BIN / "ray"),
            "start",
            "--block",
            "--disable-usage-stats",
            "--include-log-monitor=false",
        ]
        command += ["--num-cpus=2", "--num-gpus=1", "--object-store-memory=100000000"]
        command += [
            "--min-worker-port=0",
            "--max-worker-port=0",
            f"--dashboard-agent-listen-port={free_port()}",
        ]
        nodes.append(
            subprocess.Popen([*command, *arguments], cwd=CHECKOUT, env=os.environ | environment)
        )

    # A short path: Unix sockets below it may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        try:
            head = [
                "--head",
                f"--port={port}",
                f"--ray-client-server-port={free_port()}",
                f"--temp-dir={folder}",
            ]
            start(*head, "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}")
            ray_cluster = Cluster(f"http://127.0.0.1:{dashboard_port}", environment, nodes)
            wait_until(lambda: alive_nodes(ray_cluster) == 1, timeout_s=180, what="the head node")
            start(f"--address=127.0.0.1:{port}")
            wait_until(lambda: alive_nodes(ray_cluster) == 2, timeout_s=180, what="the second node")
            yield ray_cluster
        finally:
            for node in reversed(nodes):
                end_family(node)


def alive_nodes(cluster: Cluster) -> int:
    """How many nodes the head knows; 0 while it starts."""
    authorization = {"Authorization": f"Bearer {cluster.environment['RAY_AUTH_TOKEN']}"}
    request = urllib.request.Request(f"{cluster.address}/nodes?view=summary", headers=authorization)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            summary = json.load(answer)["data"]["summary"]
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return 0

    return sum(node["raylet"].get("state") == "ALIVE" for node in summary)


@pytest.fixture
def project(
    cluster: Cluster, data: str, clips_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    """A project with that data, and a daemon whose instance file is the cluster's, unchanged."""
    settings = small_settings(clips_folder, tmp_path) | {"data_root": data}
    settings["automation"] = {"run_resources": RESOURCES}
    config = write_settings(tmp_path / "config.yaml", settings)
    home = tmp_path / "dagster_home"
    home.mkdir()
    shutil.copy(CHECKOUT / "dagster_home" / "cluster" / "dagster.yaml", home)
    choice = {
        "DAGSTER_HOME": str(home),
        "HAPVR_CONFIG": str(config),
        "HAPVR_RAY_ADDRESS": cluster.address,
    }
    for name, value in {**cluster.environment, **choice}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HAPVR_VIDEOS", raising=False)
    with dg.DagsterInstance.get() as instance:
        instance.add_dynamic_partitions(str(SHARDS.name), list(KEYS))
    # It sees that a process of this machine is gone; Ray has to tell of those on others.
    sensor = [str(BIN / "dagster"), "sensor", "stop", "fail_lost_runs", "-w", "workspace.yaml"]
    subprocess.run(sensor, cwd=CHECKOUT, capture_output=True, check=True)
    daemon = subprocess.Popen(
        [sys.executable, "-m", "dagster._daemon", "run", "-w", "workspace.yaml"], cwd=CHECKOUT
    )
    try:
        yield Project.open(config)
    finally:
        end_family(daemon)


def launch_backfill(job: str) -> None:
    """As the button in the UI does; the runs of `dagster job backfill` would not be retried."""
    repository = {"repositoryLocationName": "hapvr", "repositoryName": "__repository__"}
    selector = {"partitionSetName": f"{job}_partition_set", "repositorySelector": repository}
    mutation = (
        "mutation($p: LaunchBackfillParams!) { "
        "launchPartitionBackfill(backfillParams: $p) { __typename } }"
    )
    variables = json.dumps({"p": {"selector": selector, "partitionNames": KEYS}})
    command = [
        str(BIN / "dagster-graphql"),
        "-w",
        "workspace.yaml",
        "--text",
        mutation,
        "--variables",
        variables,
    ]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert "LaunchBackfillSuccess" in done.stdout


def process_of(run: dg.DagsterRun) -> int:
    """The process that executes a run."""
    return int(run.tags[PROCESS_TAG].rpartition("@")[2].partition(":")[0])


def test_shards_survive_a_node_and_equal_local_ones(
    project: Project, small_project: Project, cluster: Cluster
) -> None:
    """Two shards from files to features, one of them to training data; all of a node is killed
    while it ingests. Its runs are retried on the other; every data file has the bytes of the one
    made without Dagster, Ray and object store; both nodes worked; each run asked for what the
    configuration gives its job."""
    from ray.job_submission import JobSubmissionClient

    with dg.DagsterInstance.get() as instance:

        def runs(*statuses: dg.DagsterRunStatus, job: str | None = None) -> list[dg.DagsterRun]:
            matching_runs = instance.get_runs(dg.RunsFilter(job_name=job, statuses=list(statuses)))
            return [run for run in matching_runs if run.job_name in RESOURCES]

        def started_on_the_second_node() -> list[dg.DagsterRun]:
            there = {process.pid for process in family_of(cluster.nodes[1])}
            started = runs(dg.DagsterRunStatus.STARTED, job="ingest")
            return [run for run in started if PROCESS_TAG in run.tags and process_of(run) in there]

        def wait_for_all(job: str) -> None:
            wait_until(
                lambda: (
                    {
                        run.tags["dagster/partition"]
                        for run in runs(dg.DagsterRunStatus.SUCCESS, job=job)
                    }
                    == set(KEYS)
                ),
                timeout_s=600,
                what=f"all shards of {job}",
            )

        launch_backfill("ingest")
        killed = wait_until(
            started_on_the_second_node, timeout_s=300, what="a run on the second node"
        )
        lost = family_of(cluster.nodes[1])
        for process in lost:  # all end at once, as if the machine had lost power
            process.kill()
        psutil.wait_procs(lost, timeout=30)
        wait_for_all("ingest")
        launch_backfill("extract")
        wait_for_all("extract")
        failed = runs(dg.DagsterRunStatus.FAILURE)
        finished = runs(dg.DagsterRunStatus.SUCCESS)

    assert {run.run_id for run in failed} == {run.run_id for run in killed}
    for run in failed:
        (retry,) = [other for other in (*failed, *finished) if other.parent_run_id == run.run_id]
        assert retry.tags["dagster/partition"] == run.tags["dagster/partition"]

    for run in finished:
        assert json.loads(run.tags["dagster-ray/config"]) == RESOURCES[run.job_name]
    jobs = {job.submission_id: job for job in JobSubmissionClient(cluster.address).list_jobs()}
    assert set(jobs) == {f"dagster-run-{run.run_id}" for run in (*failed, *finished)}
    assert len({job.driver_node_id for job in jobs.values()}) == 2
    for key in KEYS:
        for stage in MADE if key.startswith("own-train") else MADE[:3]:
            remote = project.shard(stage, key)
            local = small_project.shard(stage, key)
            assert remote.index().equals(local.index()), f"{stage} of {key}"
            if stage != "videos":  # an index alone
                assert remote.root.sha256(remote.data_name) == local.read().data_sha256, (
                    f"{stage} of {key}"
                )
