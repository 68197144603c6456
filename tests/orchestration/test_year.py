"""A year of re-trainings in fast-forward, one a week, of which many fail: somebody is told of each
once, and nothing piles up.

WEEKS: how many; `make year` runs all 52."""

import importlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest

import hapvr.care.health
from hapvr.care.repair import repair
from hapvr.care.verify import verify_root
from hapvr.registry.versions import TARGET_TAG, champion_of, promote, version_tags
from hapvr.steps import training
from hapvr.steps.project import Project
from hapvr.steps.training import MODELS, tracker_of
from pipelines.monitoring import old_runs, remove_old_runs, sensors, waiting_alerts
from tests.conftest import short_edits, small_settings, write_settings
from tests.orchestration.conftest import Storage, execute
from tests.steps.test_alerts import Receiver, receiver

__all__ = ["receiver"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
WEEKS = int(os.environ.get("WEEKS", "6"))
SPOILED = {"optimizer": {"learning_rate": 1.0, "warmup_steps": 0}}
STORES = ("worse", "sane", "killed", "registry away", "disk full", "poisoned shard")
SUCCEEDING = {"worse", "sane"}
NOBODY = "http://127.0.0.1:9"


@contextmanager
def trainers(change: Callable[[psutil.Process], None]) -> Iterator[None]:
    """Do this once to a training's process as soon as it is there."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                try:
                    if "hapvr.trainer" in process.cmdline():
                        return change(process)
                except psutil.NoSuchProcess:
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def poisoned(project: Project) -> Iterator[None]:
    """A byte of a shard of training views is another; afterwards somebody has it made again."""
    (shard,) = project.root.list_folders("training_views")[:1]
    path = project.root.local_path(f"training_views/{shard}/data.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    yield
    damaged = [check for check in verify_root(project.root) if check.state != "ok"]
    assert [check.state for check in repair(project, damaged)] == ["repaired"]


@contextmanager
def happening(kind: str, project: Project) -> Iterator[None]:
    """What befalls a training of this kind."""
    with ExitStack() as stack:
        if kind == "killed":
            stack.enter_context(trainers(psutil.Process.kill))
        if kind == "disk full":
            limit = (20_000, 20_000)
            stack.enter_context(
                trainers(lambda process: process.rlimit(psutil.RLIMIT_FSIZE, limit))
            )

        if kind == "poisoned shard":
            stack.enter_context(poisoned(project))
        yield


class Year:
    """A project with data, whose configuration, clock and daemon the test moves."""

    def __init__(
        self, folder: Path, clips: Path, webhook: str, instance: dg.DagsterInstance
    ) -> None:
        self.folder = folder
        self.instance = instance
        self.home = Path(instance.root_directory)
        self.settings = small_settings(clips, folder / "data") | {
            "automation": {"enabled": True},
            "watch": {"webhook": {"url": webhook}},
            "retention": {"run_days": 1},
        }
        self.settings["evaluation"]["gate"] = {"enabled": True}
        self.configure(0)

    def configure(self, seed: int, *, registry: str | None = None, **train: Any) -> None:
        settings = self.settings | {"train": self.settings["train"] | train | {"seed": seed}}
        write_settings(
            self.folder / "config.yaml",
            settings | {"tracking": settings["tracking"] | {"uri": registry}},
        )

    @property
    def project(self) -> Project:
        return Project.open(self.folder / "config.yaml")

    def train(self, week: int) -> dg.ExecuteInProcessResult:
        """What the schedule asks for on a Sunday; none of its retries helps, so a person has to."""
        from pipelines.automation import retrain_on_schedule

        moment = datetime(2026, 1, 4, 3, tzinfo=UTC) + timedelta(weeks=week)
        given = {"instance": self.instance, "resources": self.resources()}
        request = retrain_on_schedule(
            dg.build_schedule_context(scheduled_execution_time=moment, **given)
        )
        assert isinstance(request, dg.RunRequest)
        return execute(
            self.instance, "retrain", tags=dict(request.tags) | {"dagster/max_retries": "0"}
        )

    def resources(self) -> dict[str, Any]:
        from pipelines.resources import project_resource

        return {"project": project_resource()}

    def daemon(self, result: dg.ExecuteInProcessResult) -> None:
        """What the sensors do after a run, and once more an hour later."""
        if not result.success:
            sensor = next(one for one in sensors if one.name == "close_failed_training")
            (failure,) = [
                event for event in result.all_events if event.event_type_value == "PIPELINE_FAILURE"
            ]
            context = dg.build_run_status_sensor_context(
                sensor_name=sensor.name,
                dagster_instance=self.instance,
                dagster_run=result.dagster_run,
                dagster_event=failure,
                resources=self.resources(),
            )
            sensor(context)

        past = time.time() - 3600
        for path in (self.folder / "data" / MODELS).glob("*/*"):
            os.utime(path, (past, past))
        for _ in range(2):
            waiting_alerts(
                dg.build_sensor_context(instance=self.instance, resources=self.resources())
            )

    def clean(self) -> None:
        """What `old_runs` does half a year later."""
        remove_old_runs(self.instance, datetime.now(UTC) + timedelta(seconds=1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "DAY_S", 0.0)
            old_runs(dg.build_sensor_context(instance=self.instance, resources=self.resources()))


@pytest.fixture
def year(tmp_path: Path, small_project: Project, receiver: Receiver) -> Iterator[Year]:
    source = Path(small_project.config.data_root).parent
    shutil.copytree(
        source / "data", tmp_path / "data", ignore=shutil.ignore_patterns("models")
    )  # of other tests
    clips = Path(small_project.config.sources[0].path)
    with Storage().instance(tmp_path, tmp_path / "config.yaml") as instance, short_edits():
        importlib.import_module("pipelines.automation")
        yield Year(tmp_path, clips, f"http://127.0.0.1:{receiver.port}/hook", instance)


def test_a_year(year: Year, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each training that fails, is promoted or is refused is told once; the champion never gets
    worse; of what failed, and of runs of Dagster that nothing needs any more, nothing is left."""
    monkeypatch.setattr(hapvr.care.health, "MIN_FREE_BYTES", 0)
    told: list[list[str]] = []
    targets = []
    sizes = []
    number = 0
    for week in range(WEEKS):
        kind = STORES[week % len(STORES)]
        year.configure(
            week,
            registry=NOBODY if kind == "registry away" else None,
            **SPOILED if kind == "worse" else {},
        )
        with happening(kind, year.project):
            result = year.train(week)
        assert result.success == (kind in SUCCEEDING), kind
        year.daemon(result)
        told.append([json.loads(body)["event"] for _, body in receiver.got[number:]])
        number = len(receiver.got)
        year.configure(week)
        client = tracker_of(year.project).client
        name = "hapvr"
        if week == 0:
            promote(client, name, 2, reason="a mistake, which the gate would not have made")
        champion = champion_of(client, name)
        targets.append(float(version_tags(client, name, champion.version)[TARGET_TAG]))
        if kind == STORES[-1]:
            year.clean()
            keys = {
                client.get_run(version.run_id).data.tags["hapvr.run_key"]
                for version in client.search_model_versions(f"name = '{name}'")
            }
            assert {
                path.name for path in (year.folder / "data" / MODELS).iterdir() if path.is_dir()
            } <= keys
            assert len(year.instance.get_runs()) <= 2  # the last of each asset
            sizes.append(
                sum(path.stat().st_size for path in year.home.rglob("*") if path.is_file())
            )

    assert len(receiver.ids) == len(set(receiver.ids)) == WEEKS
    allowed = {True: {"model_promoted", "model_refused"}, False: {"training_failed"}}
    for week, events in enumerate(told):
        assert set(events) <= allowed[STORES[week % len(STORES)] in SUCCEEDING], (week, events)
    assert targets == sorted(targets)
    assert targets[-1] > targets[0]
    assert sizes[-1] <= 2 * sizes[0]
