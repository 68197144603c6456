"""Sensors that clean up after runs which could not do so themselves.

Dagster notices that a process died only while the server that started it lives, so runs record
their process (`ProjectResource`).
"""

import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

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
        message = f"process {run.tags[PROCESS_TAG]} of this run is gone"
        context.instance.report_run_failed(run, message)

    if not lost:
        return dg.SkipReason(f"{len(started)} runs, none lost")
    names = ", ".join(run.run_id for run in lost)
    return dg.SkipReason(f"failed {len(lost)} lost runs: {names}")


def is_lost(process: str) -> bool:
    """Whether a process recorded by `process_tag` was on this machine and has ended."""
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

        run = context.dagster_run
        opened = project.open()
        is_final = run.tags.get("dagster/will_retry") != "true"
        if status == dg.DagsterRunStatus.FAILURE and is_final:
            reason = failure_reason(context.instance, run.run_id)
            tell(opened, run_failed(run.job_name, run.root_run_id or run.run_id, reason))

        mlflow_run = run.tags.get("mlflow/run_id", "")
        going_on = dg.RunsFilter(tags={"mlflow/run_id": mlflow_run}, statuses=UNFINISHED)
        if mlflow_run and not context.instance.get_runs(going_on, limit=1):
            # last, since the tick ends here if MLflow does not answer
            client = tracker_of(opened).client
            if client.get_run(mlflow_run).info.status == "RUNNING":
                client.set_terminated(mlflow_run, status="FAILED")

    return close


def failure_reason(instance: dg.DagsterInstance, run_id: str) -> str:
    """The message of the first failed step of a run; where no step failed, Dagster's own."""
    failures = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
    message = "the run ended before its first step"
    for entry in instance.all_logs(run_id, of_type=failures):
        event = entry.get_dagster_event()
        if event.is_step_failure:
            return without_logins(_message_of(event.step_failure_data))
        message = event.message or message

    return without_logins(message)


def _message_of(failure: Any) -> str:
    """The message that Dagster recorded for a failed step."""
    if failure.user_failure_data and failure.user_failure_data.description:
        return str(failure.user_failure_data.description)
    if failure.error is None:
        return "no error was recorded"
    # Dagster's own error is around ours.
    error = failure.error.cause or failure.error
    return str(error.message).strip()


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
    delivery = deliver_alerts(opened, limit_s=DELIVER_S)  # first, whatever else is found
    is_due = abs(time.time() - float(context.cursor or 0)) > LOOK_S
    if opened.config.watch.webhook is not None and is_due:
        try:
            concerns = health(opened).concerns
        except HapvrError as error:
            problem = f"what is stored cannot be read: {error}"
            concerns = [Concern("status_unknown", "status", problem, lasting=True)]

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
    num_runs = remove_old_runs(context.instance, datetime.now(UTC) - timedelta(days=days))
    num_trainings = len(remove_old_trainings(opened))
    return dg.SkipReason(f"removed {num_runs} runs and {num_trainings} trainings")


def remove_old_runs(instance: dg.DagsterInstance, before: datetime) -> int:
    """Remove runs that ended before a moment, MAX_REMOVED at most, except the last one that made an
    asset or partition."""
    filters = dg.RunsFilter(statuses=ENDED, updated_before=before)
    ended = instance.get_run_records(filters, ascending=True)
    if not ended:
        return 0
    kept: set[str] = set()
    for name in CHAIN:
        kept |= _made_last(instance, dg.AssetKey(name))

    run_ids = [record.dagster_run.run_id for record in ended]
    old = [run_id for run_id in run_ids if run_id not in kept][:MAX_REMOVED]
    for run_id in old:
        instance.delete_run(run_id)
        instance.compute_log_manager.delete_logs(prefix=[run_id])
        # SQLite leaves an empty database of each run.
        database = Path(instance.root_directory, "history", "runs", f"{run_id}.db")
        database.unlink(missing_ok=True)

    return len(old)


def _made_last(instance: dg.DagsterInstance, key: dg.AssetKey) -> set[str]:
    """The runs that made the present state of an asset, or of each of its partitions."""
    last: dict[str | None, str] = {}
    cursor: str | None = None
    while True:
        page = instance.fetch_materializations(key, limit=1000, cursor=cursor)
        for record in page.records:
            last.setdefault(record.partition_key, record.run_id)
        if not page.has_more:
            return set(last.values())
        cursor = page.cursor


sensors = [
    fail_lost_runs,
    waiting_alerts,
    old_runs,
    closing_sensor("close_failed_training", dg.DagsterRunStatus.FAILURE),
    closing_sensor("close_canceled_training", dg.DagsterRunStatus.CANCELED),
]
