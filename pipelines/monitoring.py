"""Sensors that clean up after runs which could not do so themselves.

Dagster notices that a process died only while the server that started it lives: so runs note theirs
(`ProjectResource`).
"""

import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import psutil

from assets.project import PROCESS_TAG, ProjectResource, started_s
from hapvr.chain import CHAIN
from hapvr.errors import HapvrError, without_logins

INTERVAL_S = 30
OLD_INTERVAL_S = 3600
MAX_REMOVED = 200  # a tick may take a minute
LOOK_S = 300.0
DELIVER_S = 20.0  # a tick may take a minute
UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]

ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


@dg.sensor(
    name="fail_lost_runs",
    minimum_interval_seconds=INTERVAL_S,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Fails runs whose process on this machine is gone (killed, out of memory, "
    "restart), so that they are retried.",
)
def fail_lost_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    started = context.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    lost = [run for run in started if is_lost(run.tags.get(PROCESS_TAG, ""))]
    for run in lost:
        context.instance.report_run_failed(
            run, f"process {run.tags[PROCESS_TAG]} of this run is gone"
        )
    names = ", ".join(run.run_id for run in lost)
    return dg.SkipReason(
        f"failed {len(lost)} lost runs: {names}" if lost else f"{len(started)} runs, none lost"
    )


def is_lost(process: str) -> bool:
    """Whether a process noted by `process_tag` was on this machine and has ended."""
    host, _, rest = process.rpartition("@")
    pid, _, created = rest.partition(":")
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        return abs(started_s(psutil.Process(int(pid))) - float(created)) > 2
    except psutil.NoSuchProcess:
        return True
    except ValueError:  # another's tag
        return False


def closing_sensor(name: str, status: dg.DagsterRunStatus) -> dg.RunStatusSensorDefinition:
    """A sensor for runs that ended with `status`. A retry continues the same MLflow run, which is
    then left alone."""

    @dg.run_status_sensor(
        name=name,
        run_status=status,
        minimum_interval_seconds=INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Closes the MLflow run of a training that died, and tells of runs that "
        "failed and are not retried.",
    )
    def close(context: dg.RunStatusSensorContext, project: ProjectResource) -> None:
        from hapvr.steps.alerts import run_failed, tell
        from hapvr.steps.training import tracker_of

        run, opened = context.dagster_run, project.open()
        mlflow_run = run.tags.get("mlflow/run_id", "")
        if status == dg.DagsterRunStatus.FAILURE and run.tags.get("dagster/will_retry") != "true":
            said = failure_reason(context.instance, run.run_id)
            tell(opened, run_failed(run.job_name, run.root_run_id or run.run_id, said))
        going_on = dg.RunsFilter(tags={"mlflow/run_id": mlflow_run}, statuses=UNFINISHED)
        if mlflow_run and not context.instance.get_runs(going_on, limit=1):
            client = tracker_of(
                opened
            ).client  # last: where MLflow does not answer, the tick ends here
            if client.get_run(mlflow_run).info.status == "RUNNING":
                client.set_terminated(mlflow_run, status="FAILED")

    return close


def failure_reason(instance: dg.DagsterInstance, run_id: str) -> str:
    """What the first failed step of a run said; where no step failed, what Dagster said."""
    failures = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
    said = "the run ended before its first step"
    for event in (
        entry.get_dagster_event() for entry in instance.all_logs(run_id, of_type=failures)
    ):
        if not event.is_step_failure:
            said = event.message or said
            continue
        failure = event.step_failure_data
        if failure.user_failure_data and failure.user_failure_data.description:
            return without_logins(failure.user_failure_data.description)
        error = failure.error and (
            failure.error.cause or failure.error
        )  # Dagster's own is around ours
        return (
            without_logins(error.message.strip()) if error is not None else "no error was recorded"
        )
    return without_logins(said)


@dg.sensor(
    name="waiting_alerts",
    minimum_interval_seconds=INTERVAL_S,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Posts to the webhook what needs a person, and what it has not taken yet.",
)
def waiting_alerts(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.SkipReason:
    from hapvr.care.health import health
    from hapvr.steps.alerts import Concern, deliver_alerts, tell

    opened = project.open()
    delivery = deliver_alerts(opened, limit_s=DELIVER_S)  # first, whatever the look may find
    if (
        opened.config.watch.webhook is not None
        and abs(time.time() - float(context.cursor or 0)) > LOOK_S
    ):
        try:
            concerns = health(opened).concerns
        except HapvrError as error:
            concerns = [
                Concern(
                    "status_unknown",
                    "status",
                    f"what is stored cannot be read: {error}",
                    lasting=True,
                )
            ]
        tell(opened, *concerns)
        context.update_cursor(str(time.time()))
    return dg.SkipReason(
        f"{delivery.delivered} messages were posted, {delivery.waiting} wait. {delivery.problem}"
    )


@dg.sensor(
    name="old_runs",
    minimum_interval_seconds=OLD_INTERVAL_S,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Removes runs and trainings that ended `retention.run_days` ago and that "
    "nothing needs any more.",
)
def old_runs(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.SkipReason:
    from hapvr.steps.training import remove_old_trainings

    opened = project.open()
    days = opened.config.retention.run_days
    if days is None:
        return dg.SkipReason("retention.run_days is null: all runs are kept")
    runs = remove_old_runs(context.instance, datetime.now(UTC) - timedelta(days=days))
    return dg.SkipReason(f"removed {runs} runs and {len(remove_old_trainings(opened))} trainings")


def remove_old_runs(instance: dg.DagsterInstance, before: datetime) -> int:
    """Remove runs that ended before a moment, MAX_REMOVED at most, but for the last one that made
    an asset or partition."""
    ended = instance.get_run_records(
        dg.RunsFilter(statuses=ENDED, updated_before=before), ascending=True
    )
    kept = (
        {run for name in CHAIN for run in _made_last(instance, dg.AssetKey(name))}
        if ended
        else set()
    )
    old = [record.dagster_run.run_id for record in ended if record.dagster_run.run_id not in kept][
        :MAX_REMOVED
    ]
    for run_id in old:
        instance.delete_run(run_id)
        instance.compute_log_manager.delete_logs(prefix=[run_id])
        # SQLite leaves an empty database of each run
        Path(instance.root_directory, "history", "runs", f"{run_id}.db").unlink(missing_ok=True)
    return len(old)


def _made_last(instance: dg.DagsterInstance, key: dg.AssetKey) -> set[str]:
    """Runs that made what an asset, or each of its partitions, is now."""
    last: dict[str | None, str] = {}
    cursor, more = None, True
    while more:
        page = instance.fetch_materializations(key, limit=1000, cursor=cursor)
        cursor, more = page.cursor, page.has_more
        for record in page.records:
            last.setdefault(record.partition_key, record.run_id)
    return set(last.values())


sensors = [
    fail_lost_runs,
    waiting_alerts,
    old_runs,
    closing_sensor("close_failed_training", dg.DagsterRunStatus.FAILURE),
    closing_sensor("close_canceled_training", dg.DagsterRunStatus.CANCELED),
]
