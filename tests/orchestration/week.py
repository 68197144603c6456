"""A week of a team's project in fast-forward, and what is seen on each of its days."""

import importlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
from mlflow import MlflowClient

from hapvr.data.manifest import collection_keys, shard_keys
from hapvr.registry.champions import champion_of, promote, rollback
from hapvr.registry.versions import version_tags
from hapvr.steps.project import Project
from hapvr.steps.training import tracker_of
from tests.conftest import short_edits, small_settings, write_clip, write_settings
from tests.orchestration.conftest import Storage, execute, materialize, requested

SPOILED = {"optimizer": {"learning_rate": 1.0, "warmup_steps": 0}}
SEARCHED = ("frame_descriptors", "search_index")
FLOWING = ("videos", "frames", "features", "training_views", "pseudo_labels")
MODEL = "hapvr"

Answer = dg.RunRequest | dg.SkipReason
Asked = Counter[str]
"""How often each asset was asked for, until nothing was."""


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

    @property
    def inbox(self) -> Path:
        return self.folder / "inbox"

    @property
    def client(self) -> MlflowClient:
        return tracker_of(self.project).client

    def champion(self) -> int:
        """The version that is champion."""
        return int(champion_of(self.client, MODEL).version)

    def configure(self, **train: Any) -> None:
        """Write the configuration with these training settings."""
        settings = self.settings | {"train": self.settings["train"] | train}
        write_settings(self.config, settings)

    def videos_arrive(self, *seeds: int) -> None:
        """Clips appear in the inbox, all written a while ago."""
        for seed in seeds:
            write_clip(self.inbox / f"news {seed}.mp4", seed=seed)
        age(self.inbox)

    def resources(self) -> dict[str, Any]:
        from pipelines.resources import project_resource

        return {"project": project_resource()}

    def tick(self, name: str, *, day: int = 1) -> dg.RunRequest | dg.SkipReason:
        """Evaluate a sensor or the schedule as the daemon would."""
        resources = self.resources()
        if name == "retrain_on_schedule":
            tick: Any = dg.build_schedule_context(
                instance=self.instance,
                scheduled_execution_time=datetime(2026, 11, day, 3, tzinfo=UTC),
                resources=resources,
            )
        else:
            tick = dg.build_sensor_context(instance=self.instance, resources=resources)

        # A schedule opens an instance of its own, which ends with its context.
        with tick as context:
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

    def answers_during_a_training(self) -> tuple[str, dict[str, Answer]]:
        """The run of a training that is under way, and what the sensor and the schedule say
        meanwhile."""
        from pipelines.definitions import defs

        running = self.instance.create_run_for_job(
            defs.resolve_job_def("retrain"), status=dg.DagsterRunStatus.STARTED
        )
        answers = {name: self.tick(name, day=4) for name in ("new_videos", "retrain_on_schedule")}
        self.instance.report_run_canceled(running)
        return running.run_id, answers

    def flow(self) -> Counter[str]:
        """Tick the automation of shards until it asks for nothing; returns how often each asset was
        asked for."""
        asked: Counter[str] = Counter()
        while wanted := self.requested():  # the test's time limit ends what does not come to rest
            for partition, assets in wanted.items():
                asked.update(assets)
                assert materialize(self.instance, *assets, shard=partition).success

        return asked

    def requested(self) -> dict[str | None, list[str]]:
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


def materializations(week: Week, asset: str) -> Counter[str]:
    """How often each partition of an asset was made."""
    records = week.instance.fetch_materializations(dg.AssetKey(asset), limit=1000).records
    return Counter(str(record.partition_key) for record in records)


@contextmanager
def begun(folder: Path, clips: Path, storage: Storage, *, mlflow_server: str) -> Iterator[Week]:
    """A team's project with a benchmark of own clips and an inbox, before anything ran."""
    shutil.copytree(clips, folder / "clips")
    age(folder / "clips")
    settings = small_settings(folder / "clips", folder / "data")
    settings["sources"].append({"kind": "folder", "name": "inbox", "path": str(folder / "inbox")})
    settings["shard_videos"] = 50
    settings["automation"] = {"enabled": True, "retrain_new_videos": 3}
    settings["tracking"]["uri"] = mlflow_server
    config = write_settings(folder / "config.yaml", settings)
    with storage.instance(folder, config) as instance, short_edits():
        yield Week(folder, settings, instance, importlib.import_module("pipelines.automation"))


@dataclass(frozen=True)
class Monday:
    """The first videos: everything is new."""

    asked_before: Asked
    """before anything was there"""
    looked_again: Answer
    """of `new_videos`, once the manifest had all"""
    shards: set[str]
    asked: Asked
    asked_again: Asked
    champion: int
    """after the first training, by spoiled settings"""
    tags: Mapping[str, str]
    """of the version that it trained, 2, which somebody then promoted by mistake"""


def monday(week: Week) -> Monday:
    # What has failed would not be asked for again.
    asked_before = week.flow()
    week.videos_arrive(200, 201, 202)
    week.configure(**SPOILED)
    week.follow("new_videos", "find_videos")
    looked_again = week.tick("new_videos")
    shards = set(week.instance.get_dynamic_partitions("shards"))
    asked = week.flow()
    asked_again = week.flow()
    week.follow("new_videos", "retrain")
    champion = week.champion()
    tags = version_tags(week.client, MODEL, 2)
    promote(week.client, MODEL, 2, reason="a mistake")
    return Monday(asked_before, looked_again, shards, asked, asked_again, champion, tags)


@dataclass(frozen=True)
class Tuesday:
    """Nothing is new but the champion; a drive goes and comes back, twice."""

    answers: Mapping[str, Answer]
    """of the sensor and the schedule"""
    num_shards: int
    """of the collection"""
    asked: Asked
    asked_again: Asked
    run_keys: list[str | None]
    """of what was asked for when the drive went and came"""
    asked_after: Asked


def tuesday(week: Week) -> Tuesday:
    answers = {name: week.tick(name, day=3) for name in ("new_videos", "retrain_on_schedule")}
    shards = set(week.instance.get_dynamic_partitions("shards"))
    asked = week.flow()
    asked_again = week.flow()
    run_keys = []
    inbox = week.inbox
    for place in (inbox.with_name("away"), inbox) * 2:
        inbox = inbox.rename(place)
        run_keys.append(week.follow("new_videos", "find_videos").run_key)

    num_shards = len(collection_keys(week.project.root, shards))
    return Tuesday(answers, num_shards, asked, asked_again, run_keys, week.flow())


@dataclass(frozen=True)
class Wednesday:
    """Three more videos, and sane settings."""

    new_shards: set[str]
    asked: Asked
    running: str
    """a re-training, while which the sensor and the schedule were asked"""
    answers: Mapping[str, Answer]
    champion_run: str
    """the MLflow run of the champion before"""
    tags: Mapping[str, str]
    """of the version that was trained, 3"""


def wednesday(week: Week) -> Wednesday:
    before = set(week.instance.get_dynamic_partitions("shards"))
    champion = champion_of(week.client, MODEL)
    week.videos_arrive(203, 204, 205)
    week.follow("new_videos", "find_videos")
    new_shards = set(week.instance.get_dynamic_partitions("shards")) - before
    asked = week.flow()
    # The spoiled model would not have passed the gate.
    week.settings["evaluation"]["gate"] = {"enabled": True}
    week.configure()
    request = week.tick("new_videos")
    assert isinstance(request, dg.RunRequest)
    running, answers = week.answers_during_a_training()
    assert week.run("retrain", request).success
    return Wednesday(
        new_shards, asked, running, answers, champion.run_id, version_tags(week.client, MODEL, 3)
    )


@dataclass(frozen=True)
class Thursday:
    """Somebody spoils the settings, and the schedule trains by them."""

    tags: Mapping[str, str]
    """of the version that was trained, 4"""
    champion: int
    checks: list[str]
    """how the two checks of the gate ended"""
    versions: list[int]
    run_keys: list[str]
    """of all trainings that MLflow has"""


def thursday(week: Week) -> Thursday:
    week.configure(**SPOILED, seed=1)
    week.follow("retrain_on_schedule", "retrain", day=5)
    names = ("better_on_the_target", "no_required_metric_worse")
    gates = [dg.AssetCheckKey(dg.AssetKey("registered_model"), check) for check in names]
    checks = week.instance.event_log_storage.get_latest_asset_check_execution_by_key(gates)
    versions = week.client.search_model_versions(f"name = '{MODEL}'")
    runs = week.client.search_runs([tracker_of(week.project).experiment_id])
    return Thursday(
        tags=version_tags(week.client, MODEL, 4),
        champion=week.champion(),
        checks=[record.status.value for record in checks.values()],
        versions=sorted(int(version.version) for version in versions),
        run_keys=[run.data.tags["hapvr.run_key"] for run in runs],
    )


@dataclass(frozen=True)
class Friday:
    """People do not like what they see, and go back."""

    champion: int
    tags: Mapping[str, str]
    """of version 2"""


def friday(week: Week) -> Friday:
    champion = rollback(week.client, MODEL, reason="complaints")
    return Friday(champion, version_tags(week.client, MODEL, 2))


@dataclass(frozen=True)
class Saturday:
    """A recording goes on under its name."""

    made: Mapping[str, Counter[str]]
    """how often each partition of each asset was made until then"""
    asked: Asked
    asked_again: Asked


def saturday(week: Week) -> Saturday:
    counts = {asset: materializations(week, asset) for asset in (*FLOWING, "whitening")}
    week.flow()
    write_clip(week.inbox / "news 203.mp4", seed=203, seconds=3)
    age(week.inbox)
    week.tick("new_videos")
    asked = week.flow()
    week.tick("new_videos")
    return Saturday(counts, asked, week.flow())


@dataclass(frozen=True)
class Sunday:
    """An older copy of the data root is restored; then its drive is away; then all begins anew."""

    restored_shards: list[str]
    answer: Answer
    """of `new_videos` while the drive was away"""
    partitions: list[str]
    requested: Mapping[str | None, list[str]]
    """assets by partition, in the new root"""


def sunday(week: Week, copy: Path) -> Sunday:
    data = week.folder / "data"
    shutil.rmtree(data)
    copy.rename(data)
    week.follow("new_videos", "find_videos")
    restored_shards = list(shard_keys(week.project.root))
    shutil.rmtree(data)
    answer = week.tick("new_videos")
    assert week.run("find_videos", dg.RunRequest()).success
    partitions = list(week.instance.get_dynamic_partitions("shards"))
    return Sunday(restored_shards, answer, partitions, week.requested())


@dataclass(frozen=True)
class Record:
    """What was seen on each day."""

    monday: Monday
    tuesday: Tuesday
    wednesday: Wednesday
    thursday: Thursday
    friday: Friday
    saturday: Saturday
    sunday: Sunday


def lived(week: Week) -> Record:
    """Let the days pass, one after the other."""
    first = monday(week)
    second = tuesday(week)
    copy = Path(shutil.copytree(week.folder / "data", week.folder / "copy"))
    return Record(
        monday=first,
        tuesday=second,
        wednesday=wednesday(week),
        thursday=thursday(week),
        friday=friday(week),
        saturday=saturday(week),
        sunday=sunday(week, copy),
    )
