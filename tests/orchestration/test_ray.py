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
from pipelines.ui import Start, free_port, start_code_server
from tests.conftest import CHECKOUT, small_settings, write_settings
from tests.orchestration.conftest import NewDatabase
from tests.orchestration.servers import wait_until
from tests.steps.object_store import empty_bucket

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
MADE = ("videos", "frames", "features", "training_views", "pseudo_labels")
BIN = Path(sys.executable).parent
RESOURCES = {"ingest": {"num_cpus": 2.0}, "extract": {"num_cpus": 2.0, "num_gpus": 0.5}}
TRAINED = "own-train-00000"
TESTED = "own-test-00000"
KEYS = (TRAINED, TESTED)


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


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
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


@dataclass(frozen=True)
class Team:
    """A project, and the workspace file of the daemon that works for it."""

    project: Project
    workspace: Path


@pytest.fixture(scope="module")
def team(
    cluster: Cluster, data: str, clips_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Team]:
    """A project with that data, and a daemon whose instance file is the cluster's, unchanged."""
    folder = tmp_path_factory.mktemp("ray")
    settings = small_settings(clips_folder, folder) | {"data_root": data}
    settings["automation"] = {"run_resources": RESOURCES}
    config = write_settings(folder / "config.yaml", settings)
    home = folder / "dagster_home"
    home.mkdir()
    shutil.copy(CHECKOUT / "dagster_home" / "cluster" / "dagster.yaml", home)
    choice = {
        "DAGSTER_HOME": str(home),
        "HAPVR_CONFIG": str(config),
        "HAPVR_RAY_ADDRESS": cluster.address,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (*cluster.environment.items(), *choice.items()):
            patch.setenv(name, value)
        patch.delenv("HAPVR_VIDEOS", raising=False)
        with dg.DagsterInstance.get() as instance:
            instance.add_dynamic_partitions(str(SHARDS.name), list(KEYS))
        start = Start(folder, log=None)
        try:
            workspace = start_code_server(start, can_reload=False)
            # It sees that a process of this machine is gone; Ray has to tell of those on others.
            sensor = [BIN / "dagster", "sensor", "stop", "fail_lost_runs", "-w", workspace]
            subprocess.run(sensor, cwd=CHECKOUT, capture_output=True, check=True)
            start(sys.executable, "-m", "dagster._daemon", "run", "-w", workspace)
            yield Team(Project.open(config), workspace)
        finally:
            for process in start.processes:
                end_family(process)


def launch_backfill(workspace: Path, job: str) -> None:
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
        str(workspace),
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


@dataclass(frozen=True)
class Runs:
    """Those of jobs of shards that an instance has."""

    instance: dg.DagsterInstance

    def that_are(
        self, status: dg.DagsterRunStatus, *, job: str | None = None
    ) -> list[dg.DagsterRun]:
        """Runs in this state, of any job or of this one."""
        matching_runs = self.instance.get_runs(dg.RunsFilter(job_name=job, statuses=[status]))
        return [run for run in matching_runs if run.job_name in RESOURCES]

    def started_on(self, node: subprocess.Popen[bytes]) -> list[dg.DagsterRun]:
        """Runs of `ingest` whose process is one of this node's."""
        there = {process.pid for process in family_of(node)}
        started = self.that_are(dg.DagsterRunStatus.STARTED, job="ingest")
        return [run for run in started if PROCESS_TAG in run.tags and process_of(run) in there]

    def have_finished(self, job: str) -> bool:
        """Whether a job was successful for all shards."""
        finished = self.that_are(dg.DagsterRunStatus.SUCCESS, job=job)
        return {run.tags["dagster/partition"] for run in finished} == set(KEYS)


@dataclass(frozen=True)
class Survived:
    """What ran while all of a node was killed."""

    killed: list[dg.DagsterRun]
    """runs that were on the node"""
    failed: list[dg.DagsterRun]
    finished: list[dg.DagsterRun]


@pytest.fixture(scope="module")
def survived(team: Team, cluster: Cluster) -> Survived:
    """Two shards from files to features, one of them to training data; a node is killed while it
    ingests."""
    with dg.DagsterInstance.get() as instance:
        runs = Runs(instance)
        launch_backfill(team.workspace, "ingest")
        node = cluster.nodes[1]
        killed = wait_until(
            lambda: runs.started_on(node), timeout_s=300, what="a run on the second node"
        )
        lost = family_of(node)
        for process in lost:  # all end at once, as if the machine had lost power
            process.kill()
        psutil.wait_procs(lost, timeout=30)
        wait_until(lambda: runs.have_finished("ingest"), timeout_s=600, what="all shards' frames")
        launch_backfill(team.workspace, "extract")
        wait_until(lambda: runs.have_finished("extract"), timeout_s=600, what="all shards' data")
        failed = runs.that_are(dg.DagsterRunStatus.FAILURE)
        finished = runs.that_are(dg.DagsterRunStatus.SUCCESS)

    return Survived(killed, failed, finished)


def test_only_runs_of_the_lost_node_fail(survived: Survived) -> None:
    assert {run.run_id for run in survived.failed} == {run.run_id for run in survived.killed}


def test_each_lost_run_is_retried_once(survived: Survived) -> None:
    """Of the same shard."""
    for run in survived.failed:
        others = (*survived.failed, *survived.finished)
        (retry,) = (other for other in others if other.parent_run_id == run.run_id)
        assert retry.tags["dagster/partition"] == run.tags["dagster/partition"]


def test_each_run_asks_for_what_its_job_is_given(survived: Survived) -> None:
    for run in survived.finished:
        assert json.loads(run.tags["dagster-ray/config"]) == RESOURCES[run.job_name]


def test_all_runs_are_jobs_of_both_nodes(survived: Survived, cluster: Cluster) -> None:
    from ray.job_submission import JobSubmissionClient

    jobs = {job.submission_id: job for job in JobSubmissionClient(cluster.address).list_jobs()}
    runs = (*survived.failed, *survived.finished)
    assert set(jobs) == {f"dagster-run-{run.run_id}" for run in runs}
    assert len({job.driver_node_id for job in jobs.values()}) == 2


@pytest.mark.parametrize(
    ("key", "stage"),
    [(TRAINED, stage) for stage in MADE] + [(TESTED, stage) for stage in MADE[:3]],
    ids=str,
)
def test_a_shard_is_that_of_one_machine(
    survived: Survived, team: Team, small_project: Project, key: str, stage: str
) -> None:
    """Every data file has the bytes of the one made without Dagster, Ray and object store."""
    assert survived.finished
    remote = team.project.shard(stage, key)
    local = small_project.shard(stage, key)
    assert remote.index().equals(local.index())
    if stage != "videos":  # an index alone
        assert remote.root.sha256(remote.data_name) == local.read().data_sha256
