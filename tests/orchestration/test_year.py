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
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psutil
import pytest

import hapvr.care.health
from hapvr.care.repair import repair
from hapvr.care.verify import verify_root
from hapvr.registry.champions import champion_of, promote
from hapvr.registry.versions import TARGET_TAG, version_tags
from hapvr.steps import training
from hapvr.steps.project import Project
from hapvr.steps.training import MODELS, tracker_of
from pipelines.monitoring import old_runs, remove_old_runs, sensors, waiting_alerts
from tests.conftest import short_edits, small_settings, write_settings
from tests.orchestration.conftest import Storage, execute
from tests.steps.test_alerts import Receiver, receiving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
WEEKS = int(os.environ.get("WEEKS", "6"))
SPOILED = {"optimizer": {"learning_rate": 1.0, "warmup_steps": 0}}
KINDS = ("worse", "sane", "killed", "registry away", "disk full", "poisoned shard")
SUCCEEDING = {"worse", "sane"}
NOBODY = "http://127.0.0.1:9"
MODEL = "hapvr"


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
        # A schedule opens an instance of its own, which ends with its context.
        with dg.build_schedule_context(scheduled_execution_time=moment, **given) as context:
            request = retrain_on_schedule(context)

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


@dataclass(frozen=True)
class Week:
    """What became of one re-training."""

    kind: str
    has_succeeded: bool
    told: list[str]
    """events that were delivered of it"""
    target: float
    """what the champion of that week reaches on the target"""


@dataclass(frozen=True)
class Cleaning:
    """What is left after each kind of week, once old runs are removed."""

    folders: set[str]
    """of trainings, in the data root"""
    run_keys: set[str]
    """of the versions that are registered"""
    num_runs: int
    """of Dagster"""
    num_bytes: int
    """of Dagster's home"""


@dataclass(frozen=True)
class Record:
    """A year."""

    weeks: list[Week]
    cleanings: list[Cleaning]
    ids: list[str]
    """of all that was delivered"""


@pytest.fixture(scope="module")
def record(small_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    """The year, once for all tests."""
    folder = tmp_path_factory.mktemp("year")
    source = Path(small_project.config.data_root).parent
    of_other_tests = shutil.ignore_patterns("models")
    shutil.copytree(source / "data", folder / "data", ignore=of_other_tests)
    clips = Path(small_project.config.sources[0].path)
    with ExitStack() as stack:
        instance = stack.enter_context(Storage().instance(folder, folder / "config.yaml"))
        stack.enter_context(short_edits())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(hapvr.care.health, "MIN_FREE_BYTES", 0)
        importlib.import_module("pipelines.automation")
        receiver = stack.enter_context(receiving())
        year = Year(folder, clips, f"http://127.0.0.1:{receiver.port}/hook", instance)
        yield lived(year, receiver)


def lived(year: Year, receiver: Receiver) -> Record:
    """Let the weeks pass, one after the other."""
    weeks = []
    cleanings = []
    for number in range(WEEKS):
        weeks.append(week_of(year, receiver, number))
        if weeks[-1].kind == KINDS[-1]:
            cleanings.append(cleaning_of(year))

    return Record(weeks, cleanings, list(receiver.ids))


def week_of(year: Year, receiver: Receiver, number: int) -> Week:
    """Train, with what befalls a training in this week, and let the daemon do what is due."""
    kind = KINDS[number % len(KINDS)]
    registry = NOBODY if kind == "registry away" else None
    year.configure(number, registry=registry, **SPOILED if kind == "worse" else {})
    num_told = len(receiver.got)
    with happening(kind, year.project):
        result = year.train(number)
    year.daemon(result)
    told = [json.loads(body)["event"] for _, body in receiver.got[num_told:]]
    year.configure(number)
    client = tracker_of(year.project).client
    if number == 0:
        promote(client, MODEL, 2, reason="a mistake, which the gate would not have made")
    champion = champion_of(client, MODEL)
    target = float(version_tags(client, MODEL, champion.version)[TARGET_TAG])
    return Week(kind, result.success, told, target)


def cleaning_of(year: Year) -> Cleaning:
    """What half a year later is left."""
    year.clean()
    client = tracker_of(year.project).client
    versions = client.search_model_versions(f"name = '{MODEL}'")
    models = year.folder / "data" / MODELS
    return Cleaning(
        folders={path.name for path in models.iterdir() if path.is_dir()},
        run_keys={client.get_run(row.run_id).data.tags["hapvr.run_key"] for row in versions},
        num_runs=len(year.instance.get_runs()),
        num_bytes=sum(path.stat().st_size for path in year.home.rglob("*") if path.is_file()),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_fails_only_by_what_befalls_it(record: Record, kind: str) -> None:
    ends = {week.has_succeeded for week in record.weeks if week.kind == kind}
    assert ends == {kind in SUCCEEDING}


def test_each_week_is_told_once(record: Record) -> None:
    assert len(record.ids) == WEEKS
    assert len(set(record.ids)) == WEEKS


@pytest.mark.parametrize("kind", KINDS)
def test_people_are_told_how_a_training_ended(record: Record, kind: str) -> None:
    """Promoted or refused if it did well, and that it failed if not."""
    allowed = {"model_promoted", "model_refused"} if kind in SUCCEEDING else {"training_failed"}
    told = {event for week in record.weeks if week.kind == kind for event in week.told}
    assert told <= allowed


def test_the_champion_never_gets_worse(record: Record) -> None:
    """And is better at the end than at the beginning."""
    targets = [week.target for week in record.weeks]
    assert targets == sorted(targets)
    assert targets[-1] > targets[0]


def test_nothing_is_left_of_trainings_that_failed(record: Record) -> None:
    for cleaning in record.cleanings:
        assert cleaning.folders <= cleaning.run_keys


def test_old_runs_of_dagster_are_removed(record: Record) -> None:
    """But for the last of each asset."""
    for cleaning in record.cleanings:
        assert cleaning.num_runs <= 2


def test_the_home_of_dagster_does_not_grow(record: Record) -> None:
    assert record.cleanings[-1].num_bytes <= 2 * record.cleanings[0].num_bytes
