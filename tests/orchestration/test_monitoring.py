"""Runs that ended without saying so."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import psutil
import pytest

from assets.project import PROCESS_TAG, process_tag
from hapvr.steps.alerts import AlertOutbox
from hapvr.steps.project import Project
from hapvr.steps.training import tracker_of
from pipelines.monitoring import fail_lost_runs, failure_reason, is_lost, remove_old_runs, sensors
from tests.conftest import small_settings, write_settings
from tests.orchestration.conftest import Storage, execute
from tests.registry.empty_store import new_store


@pytest.fixture
def ended() -> str:
    """The tag of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        tag = process_tag(psutil.Process(process.pid))
        process.kill()
    return tag


def test_a_process_that_lives_is_not_lost() -> None:
    assert not is_lost(process_tag(psutil.Process()))


def test_a_process_that_has_ended_is_lost(ended: str) -> None:
    assert is_lost(ended)


def test_a_process_whose_number_is_anothers_is_lost() -> None:
    """The other one has another start."""
    mine = process_tag(psutil.Process())
    assert is_lost(mine.rpartition(":")[0] + ":1000.00")


@pytest.mark.parametrize("tag", ["another-host@1:1000.00", ""], ids=["other host", "no tag"])
def test_a_process_of_elsewhere_is_not_judged(tag: str) -> None:
    assert not is_lost(tag)


@pytest.mark.parametrize("seconds", [-3600, 86_400], ids=["back", "on"])
def test_a_clock_that_is_set_loses_no_process(
    seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux gives another time then for the start of the machine and of every process."""
    mine = process_tag(psutil.Process())
    booted = psutil.boot_time()
    created = psutil.Process().create_time()
    monkeypatch.setattr(psutil, "boot_time", lambda: booted + seconds)
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: created + seconds)
    assert not is_lost(mine)


@dg.op
def broken() -> None:
    raise dg.Failure("as asked for by https://alice:hunter2@host")


@dg.job
def breaking() -> None:
    broken()


def test_lost_runs_are_failed_and_living_ones_left_alone(tmp_path: Path, ended: str) -> None:
    """Three started runs: of an ended process, of this one, and one that noted nothing."""
    with Storage().instance(tmp_path, tmp_path / "no config.yaml") as instance:
        tags = {
            "lost": {PROCESS_TAG: ended},
            "alive": {PROCESS_TAG: process_tag(psutil.Process())},
            "silent": {},
        }
        runs = {
            name: instance.create_run_for_job(
                breaking, status=dg.DagsterRunStatus.STARTED, tags=given
            )
            for name, given in tags.items()
        }
        answer = fail_lost_runs(dg.build_sensor_context(instance=instance))
        status = {
            name: instance.get_run_by_id(run.run_id).status.value for name, run in runs.items()
        }

    assert status == {"lost": "FAILURE", "alive": "STARTED", "silent": "STARTED"}
    assert isinstance(answer, dg.SkipReason)
    assert runs["lost"].run_id in (answer.skip_message or "")


@pytest.mark.slow
def test_the_mlflow_run_of_a_dead_training_is_closed(tmp_path: Path) -> None:
    """A failed Dagster run whose MLflow run still is RUNNING: the sensor marks it FAILED; a
    finished one stays finished, and so does one RUNNING in which a retry goes on. Of what is not
    retried the webhook gets one message a day."""
    watch = {"watch": {"webhook": {"url": "http://127.0.0.1:9/nobody"}}}
    config = write_settings(
        tmp_path / "config.yaml", small_settings(tmp_path, tmp_path / "data") | watch
    )
    new_store(tmp_path / "data" / "mlflow")
    tracker = tracker_of(Project.open(config))
    names = ("killed", "finished", "retried")
    runs = [tracker.start(key, name=key, params={}, tags={}) for key in names]
    killed, finished, retried = runs
    tracker.client.set_terminated(finished)
    sensor = next(one for one in sensors if one.name == "close_failed_training")
    outbox_counts = []
    with Storage().instance(tmp_path, config) as instance:
        from pipelines.resources import project_resource

        instance.create_run_for_job(
            breaking, status=dg.DagsterRunStatus.STARTED, tags={"mlflow/run_id": retried}
        )
        for mlflow_run in (killed, finished, retried):
            tags = {
                "mlflow/run_id": mlflow_run,
                "dagster/will_retry": str(mlflow_run == killed).lower(),
            }
            result = breaking.execute_in_process(instance=instance, raise_on_error=False, tags=tags)
            (failure,) = [
                event for event in result.all_events if event.event_type_value == "PIPELINE_FAILURE"
            ]
            context = dg.build_run_status_sensor_context(
                sensor_name=sensor.name,
                dagster_instance=instance,
                dagster_run=result.dagster_run,
                dagster_event=failure,
                resources={"project": project_resource()},
            ).for_run_failure()
            sensor(context)
            outbox_counts.append(
                AlertOutbox(Project.open(config).root).counts() if mlflow_run != killed else (0, 0)
            )

        Project.open(config).root.write_json(
            "watch/tick.json", []
        )  # damaged: the state cannot be told
        context = dg.build_sensor_context(
            instance=instance, resources={"project": project_resource()}
        )
        waiting = next(one for one in sensors if one.name == "waiting_alerts")(context)
        assert "0 messages were posted, 1 wait. " in waiting.skip_message
        assert any(
            '"status_unknown"' in body for _, body in AlertOutbox(Project.open(config).root).due()
        )

    assert outbox_counts == [(0, 0), (0, 1), (0, 1)]
    states = [tracker.client.get_run(run).info.status for run in (killed, finished, retried)]
    assert states == ["FAILED", "FINISHED", "RUNNING"]


@pytest.mark.slow
def test_old_runs_are_removed_but_for_those_that_made_what_is_there(tmp_path: Path) -> None:
    """Of two runs of a shard the first goes, with events and logs; partitions stay materialised,
    and what is recent stays."""
    shards = dg.DynamicPartitionsDefinition(name="shards")

    @dg.asset(partitions_def=shards)
    def frames() -> dg.MaterializeResult:
        return dg.MaterializeResult(metadata={"picture": dg.MetadataValue.md("x" * 10_000)})

    with Storage().instance(tmp_path, tmp_path / "no config.yaml") as instance:
        instance.add_dynamic_partitions("shards", ["a", "b"])
        run_ids = [
            dg.materialize([frames], instance=instance, partition_key=key).run_id
            for key in ("a", "a", "b")
        ]
        failed = breaking.execute_in_process(instance=instance, raise_on_error=False).run_id
        assert failure_reason(instance, failed) == "as asked for by https://host"
        assert remove_old_runs(instance, datetime.now(UTC) - timedelta(days=1)) == 0
        assert remove_old_runs(instance, datetime.now(UTC) + timedelta(seconds=1)) == 2
        assert {run.run_id for run in instance.get_runs()} == set(run_ids[1:])
        assert instance.get_materialized_partitions(dg.AssetKey("frames")) == {"a", "b"}
        assert instance.get_latest_materialization_event(dg.AssetKey("frames")) is not None
        left = [
            one
            for one in Path(instance.root_directory).rglob("*")
            if run_ids[0] in one.name or failed in one.name
        ]

    assert left == []


@pytest.mark.slow
def test_a_failed_stage_stops_its_job_with_the_librarys_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that is not there ends the job at its first stage, and the reason names the
    folder."""
    settings = small_settings(tmp_path / "missing folder", tmp_path / "data")
    config = write_settings(tmp_path / "c.yaml", settings)
    with Storage().instance(tmp_path, config) as instance:
        result = execute(instance, "find_videos")
        assert not result.success
        reason = failure_reason(instance, result.run_id)

    assert "missing folder cannot be listed (No such" in reason
