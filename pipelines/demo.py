"""`make demo`: the jobs from the sources to a registered model and an index, one after the other, and a table of scores at the end.

python -m pipelines.demo

It starts Dagster for as long as it works, since the daemon launches the runs; `make ui` shows them afterwards.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
from dagster_graphql import DagsterGraphQLClient
from filelock import Timeout
from rich.console import Console
from rich.table import Table

from assets.project import SHARDS
from hapvr import chain
from hapvr.errors import HapvrError
from hapvr.steps.project import Project
from pipelines.jobs import ON_REQUEST
from pipelines.resources import CHECKOUT, project_resource
from pipelines.ui import LOOPBACK, ServerError, free_port, only_server, servers, start_dagster

JOBS = {job: steps for job, steps in chain.JOBS.items() if job not in ON_REQUEST}
POLL_S = 0.5


class DemoFailure(Exception):
    """A run failed; the message is for people."""


def _follow(instance: dg.DagsterInstance, console: Console, runs: Sequence[str]) -> None:
    """Wait for runs to end, and print what a training says. Raises DemoFailure with the reason of the first that fails."""
    cursors: dict[str, str | None] = dict.fromkeys(runs)
    while cursors:
        time.sleep(POLL_S)
        for run_id, cursor in list(cursors.items()):
            run = instance.get_run_by_id(run_id)
            connection = instance.get_records_for_run(run_id, cursor=cursor)
            cursors[run_id] = connection.cursor
            for entry in (record.event_log_entry for record in connection.records):
                of_training = entry.dagster_event is None and entry.step_key == "similarity_model"
                if of_training and not entry.user_message.startswith("[pipes]"):
                    console.print(f"        {entry.user_message}", markup=False, highlight=False)
            if run is not None and run.is_finished:
                del cursors[run_id]
                if not run.is_success:
                    reason = failure_reason(instance, run_id)
                    raise DemoFailure(f"{reason}\nThe log is in the UI (`make ui`) under run {run_id}.")


def failure_reason(instance: dg.DagsterInstance, run_id: str) -> str:
    """The innermost error of the failed step: what the library said, without the framework's trace.

    Where no step failed, it is what Dagster said of the run.
    """
    said = "the run ended before its first step"
    for entry in instance.all_logs(run_id):
        event = entry.dagster_event
        if event is not None and event.is_step_failure:
            error = event.step_failure_data.error
            while error is not None and error.cause is not None:
                error = error.cause
            return error.message.strip() if error is not None else "no error was recorded"
        if event is not None and event.is_failure and event.message:
            said = event.message
    return said


def main() -> int:
    """0: registered; 1: a step failed; 2: the configuration is wrong, or the instance is in use; 130: interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that runs and servers are ended
    console, resource = Console(soft_wrap=True), project_resource()
    home = Path(os.environ.setdefault("DAGSTER_HOME", str(CHECKOUT / "dagster_home")))
    launched: list[str] = []
    try:
        project = resource.open()
        console.print(
            f"{resource.config_path}: from its videos to a registered model and an index; Dagster is starting"
        )
        with only_server(home), dg.DagsterInstance.get() as instance:
            try:
                with (home / "demo.log").open("wb") as log, servers(log) as start:
                    port = free_port()
                    start_dagster(start, host=LOOPBACK, port=port)
                    client = DagsterGraphQLClient(LOOPBACK, port_number=port)
                    _run_jobs(client, instance, console, launched, project)
                    print_summary(project, console)
            finally:
                for run in instance.get_runs(dg.RunsFilter(run_ids=launched)) if launched else []:
                    if not run.is_finished:  # its process has ended with the servers
                        instance.report_run_canceled(run)
    except Timeout:
        console.print(f"`make ui` or `make demo` is using {home}: end it first, or set DAGSTER_HOME to another folder.")
        return 2
    except (HapvrError, DemoFailure, ServerError) as error:
        console.print(str(error), markup=False)
        return 2 if isinstance(error, HapvrError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


def _run_jobs(
    client: DagsterGraphQLClient,
    instance: dg.DagsterInstance,
    console: Console,
    launched: list[str],
    project: Project,
) -> None:
    """Run the jobs one after the other; those of shards once for each shard. launched: gets the ids of the runs.

    Without a champion, as where the gate refused the first version, there is no index; the summary says why.
    """
    from hapvr.registry.versions import champion_of
    from hapvr.steps.training import tracker_of

    name = project.config.tracking.registered_model
    for number, (job, steps) in enumerate(JOBS.items(), start=1):
        if job == "describe" and champion_of(tracker_of(project).client, name) is None:
            return
        began, made = time.monotonic(), ", ".join(step.name for step in steps)
        shards = sorted(instance.get_dynamic_partitions(SHARDS.name or "")) if steps[0].per_shard else [None]
        first = len(launched)
        for shard in shards:
            launched.append(client.submit_job_execution(job, tags={"dagster/partition": shard} if shard else None))
        _follow(instance, console, launched[first:])
        made += f", {len(shards)} shards" if steps[0].per_shard else ""
        line = f"[{number}/{len(JOBS)}] {job:<12} {made}: {time.monotonic() - began:.1f} s"
        console.print(line, markup=False, highlight=False)


def print_summary(project: Project, console: Console) -> None:
    """One table of the current model's scores next to the baseline's, the registered version, what was lost, where to look."""
    from hapvr.steps.evaluation import BASELINE, TRAINED, stored_scores
    from hapvr.steps.model_card import summarize
    from hapvr.steps.training import current_run

    run = current_run(project)
    for name in project.config.evaluation.benchmarks:
        data = stored_scores(project, run, name)
        rows, means = data["results"], data["target_means"]
        table = Table(title=f"{name} (policy {project.config.evaluation.policy}): mAP of *SR, micro-AP of *SD, in %")
        table.add_column("")
        for task in (*next(iter(rows.values()))["metrics"], "mean"):
            table.add_column(task, justify="right")
        for row, result in rows.items():
            table.add_row(row, *(f"{100 * value:.2f}" for value in (*result["metrics"].values(), means[row])))
        console.print(table)
        if means[TRAINED] <= means[BASELINE]:
            console.print(
                f"The trained model does not beat the untrained baseline on {name}: {100 * means[TRAINED]:.2f} against "
                f"{100 * means[BASELINE]:.2f}. More training videos, published weights or more views usually help."
            )
    console.print(f"seed {project.config.train.seed}; other seeds were not run")
    for line in summarize(project):
        console.print(line, markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
