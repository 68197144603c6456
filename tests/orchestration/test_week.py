"""A week of a team's project in fast-forward: what arrives, what runs by itself, what is promoted
and what is not."""

import importlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest

from hapvr.data.manifest import collection_keys, shard_keys
from hapvr.registry.versions import champion_of, promote, rollback, version_tags
from hapvr.steps.project import Project
from hapvr.steps.training import tracker_of
from tests.conftest import small_settings, write_clip, write_settings
from tests.orchestration.conftest import Storage, execute, materialize, requested

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
SPOILED = {"optimizer": {"learning_rate": 1.0, "warmup_steps": 0}}
SEARCHED = ("frame_descriptors", "search_index")
FLOWING = ("videos", "frames", "features", "training_views", "pseudo_labels")


@dataclass
class Week:
    """A project whose sources, configuration and clock the test moves; what is asked for is run at
    once."""

    folder: Path
    settings: dict[str, Any]
    instance: dg.DagsterInstance
    automation: ModuleType
    cursor: Any = None

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def project(self) -> Project:
        return Project.open(self.config)

    def configure(self, **train: Any) -> None:
        """Write the configuration with these training settings."""
        settings = self.settings | {"train": self.settings["train"] | train}
        write_settings(self.config, settings)

    def videos_arrive(self, *seeds: int) -> None:
        """Clips appear in the inbox, all written a while ago."""
        for seed in seeds:
            write_clip(self.folder / "inbox" / f"news {seed}.mp4", seed=seed)
        age(self.folder / "inbox")

    def resources(self) -> dict[str, Any]:
        from pipelines.resources import project_resource

        return {"project": project_resource()}

    def tick(self, name: str, *, day: int = 1) -> dg.RunRequest | dg.SkipReason:
        """Evaluate a sensor or the schedule as the daemon would."""
        if name == "retrain_on_schedule":
            context: Any = dg.build_schedule_context(
                instance=self.instance,
                scheduled_execution_time=datetime(2026, 11, day, 3, tzinfo=UTC),
                resources=self.resources(),
            )
        else:
            context = dg.build_sensor_context(instance=self.instance, resources=self.resources())

        return getattr(self.automation, name)(context)

    def run(self, job: str, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        """Execute what a tick asked for."""
        return execute(self.instance, job, tags=dict(request.tags))

    def follow(self, name: str, job: str, *, day: int = 1) -> dg.RunRequest:
        """Do what a tick asks for, one run."""
        request = self.tick(name, day=day)
        assert isinstance(request, dg.RunRequest)
        assert self.run(job, request).success
        return request

    def flow(self) -> Counter[str]:
        """Tick the automation of shards until it asks for nothing; returns how often each asset was
        asked for."""
        asked: Counter[str] = Counter()
        while wanted := self._requested():  # the test's time limit ends what does not come to rest
            for partition, assets in wanted.items():
                asked.update(assets)
                assert materialize(self.instance, *assets, shard=partition).success

        return asked

    def _requested(self) -> dict[str | None, list[str]]:
        """What the automation asks for now: assets by partition, as it would put them into runs."""
        result = requested(self.instance, self.cursor)
        self.cursor = result.cursor
        wanted: dict[str | None, list[str]] = {}
        for asset in (*FLOWING, "whitening", *SEARCHED):
            key = dg.AssetKey(asset)
            if result.get_num_requested(key):
                whole = asset in ("whitening", "search_index")
                partitions = [None] if whole else sorted(result.get_requested_partitions(key))
                for partition in partitions:
                    wanted.setdefault(partition, []).append(asset)

        return wanted


def age(folder: Path) -> None:
    """Let files that were written just now look as if that was an hour ago."""
    past = time.time() - 3600
    for path in folder.rglob("*"):
        if path.stat().st_mtime > past + 60:
            os.utime(path, (past, past))


@pytest.fixture
def week(
    postgresql: Storage, mlflow_server: str, tmp_path: Path, clips_folder: Path
) -> Iterator[Week]:
    """A team's project with a benchmark of own clips and an inbox, before anything ran."""
    shutil.copytree(clips_folder, tmp_path / "clips")
    age(tmp_path / "clips")
    settings = small_settings(tmp_path / "clips", tmp_path / "data")
    settings["sources"].append({"kind": "folder", "name": "inbox", "path": str(tmp_path / "inbox")})
    settings["shard_videos"] = 50
    settings["automation"] = {"enabled": True, "retrain_new_videos": 3}
    settings["tracking"]["uri"] = mlflow_server
    config = write_settings(tmp_path / "config.yaml", settings)
    with postgresql.instance(tmp_path, config) as instance:
        yield Week(tmp_path, settings, instance, importlib.import_module("pipelines.automation"))


def materializations(week: Week, asset: str) -> Counter[str]:
    """How often each partition of an asset was made."""
    records = week.instance.fetch_materializations(dg.AssetKey(asset), limit=1000).records
    return Counter(str(record.partition_key) for record in records)


def test_a_week(week: Week) -> None:
    """Videos arrive in batches, shards flow to features by themselves, the untrained baseline comes
    first, good models are promoted, bad ones are not, rollback works, and nothing is computed
    twice."""
    from pipelines.definitions import defs

    # Before anything is there, nothing is asked for: what has failed would not be asked for again.
    assert not week.flow()

    # Monday: the first videos; everything is new.
    week.videos_arrive(200, 201, 202)
    week.configure(**SPOILED)
    week.follow("new_videos", "find_videos")
    assert isinstance(week.tick("new_videos"), dg.SkipReason)
    first = set(week.instance.get_dynamic_partitions("shards"))
    asked = week.flow()
    assert {asset: asked[asset] for asset in FLOWING} == dict.fromkeys(FLOWING, len(first))
    assert not week.flow()
    week.follow("new_videos", "retrain")
    client = tracker_of(week.project).client
    name = "hapvr"
    assert champion_of(client, name).version == 1
    assert version_tags(client, name, 2)["hapvr.gate.champion"] == "1"
    promote(client, name, 2, reason="a mistake")
    champion = champion_of(client, name)

    # Tuesday: nothing new, so neither sensors nor schedule do anything.
    for sensor in ("new_videos", "retrain_on_schedule"):
        assert isinstance(week.tick(sensor, day=3), dg.SkipReason), sensor
    # Only the search follows the champion.
    shards = len(collection_keys(week.project.root, first))
    assert week.flow() == Counter({"frame_descriptors": shards, "search_index": 1})
    assert not week.flow()

    # A drive that goes and comes back is seen each time: Dagster takes a run key once.
    keys = set()
    inbox = Path(week.settings["sources"][-1]["path"])
    for place in (inbox.with_name("away"), inbox) * 2:
        inbox = inbox.rename(place)
        keys.add(week.follow("new_videos", "find_videos").run_key)

    assert len(keys) == 4
    assert not week.flow()

    shutil.copytree(week.folder / "data", week.folder / "copy")
    # Wednesday: three more videos make exactly one more shard; sane settings give a better model
    # than the spoiled one.
    week.videos_arrive(203, 204, 205)
    week.follow("new_videos", "find_videos")
    new = set(week.instance.get_dynamic_partitions("shards")) - first
    assert new == {"inbox-00001"}
    assert week.flow() == Counter(dict.fromkeys((*FLOWING, *SEARCHED), 1))
    week.settings["evaluation"]["gate"] = {
        "enabled": True
    }  # the spoiled model would not have passed
    week.configure()
    request = week.tick("new_videos")
    assert isinstance(request, dg.RunRequest)
    running = week.instance.create_run_for_job(
        defs.resolve_job_def("retrain"), status=dg.DagsterRunStatus.STARTED
    )
    for ticking in ("new_videos", "retrain_on_schedule"):
        answer = week.tick(ticking, day=4)
        assert isinstance(answer, dg.SkipReason)
        assert running.run_id in (answer.skip_message or "")

    week.instance.report_run_canceled(running)
    assert week.run("retrain", request).success
    tags = version_tags(client, name, 3)
    assert tags["hapvr.gate.decision"] == "promoted", tags
    assert tags["hapvr.gate.champion"] == "2"
    assert tags["hapvr.gate.champion_run"] == champion.run_id

    # Thursday: somebody spoils the settings, and the schedule trains by them. The gate keeps the
    # champion.
    week.configure(**SPOILED, seed=1)
    week.follow("retrain_on_schedule", "retrain", day=5)
    tags = version_tags(client, name, 4)
    assert tags["hapvr.gate.decision"] == "not promoted", tags
    assert champion_of(client, name).version == 3
    names = ("better_on_the_target", "no_required_metric_worse")
    gates = [dg.AssetCheckKey(dg.AssetKey("registered_model"), check) for check in names]
    checks = week.instance.event_log_storage.get_latest_asset_check_execution_by_key(gates)
    assert [record.status.value for record in checks.values()] == ["FAILED", "FAILED"]

    versions = client.search_model_versions(f"name = '{name}'")
    assert sorted(int(version.version) for version in versions) == [1, 2, 3, 4]
    keys = [
        run.data.tags["hapvr.run_key"]
        for run in client.search_runs([tracker_of(week.project).experiment_id])
    ]
    assert len(keys) == len(set(keys)) == 4

    # Friday: people do not like what they see, and go back.
    assert rollback(client, name, reason="complaints") == 2
    assert version_tags(client, name, 2)["hapvr.gate.decision"] == "champion by rollback"

    # Saturday: nothing was computed twice; then a recording goes on under its name, and is read
    # again.
    for asset in (*FLOWING, "whitening"):
        counts = materializations(week, asset)
        assert set(counts.values()) == {1}, (asset, counts)

    week.flow()
    write_clip(inbox / "news 203.mp4", seed=203, seconds=3)
    age(inbox)
    week.tick("new_videos")
    assert week.flow() == Counter(dict.fromkeys((*FLOWING, *SEARCHED), 1))
    week.tick("new_videos")
    assert not week.flow()

    # Sunday: an older copy is restored; the drive is away; all begins anew, and what Dagster knows
    # of the old root is void.
    shutil.rmtree(week.folder / "data")
    (week.folder / "copy").rename(week.folder / "data")
    week.follow("new_videos", "find_videos")
    assert "inbox-00001" in shard_keys(week.project.root)
    shutil.rmtree(week.folder / "data")
    answer = week.tick("new_videos")
    assert isinstance(answer, dg.SkipReason)
    assert "mount its drive" in (answer.skip_message or "")
    assert week.run("find_videos", dg.RunRequest()).success
    assert week._requested() == {
        key: ["videos", "frames"] for key in week.instance.get_dynamic_partitions("shards")
    }
