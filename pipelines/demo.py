"""`make demo`: the jobs from the sources to a registered model and an index, a table of scores, and
the answer of a search.

python -m pipelines.demo

It starts Dagster while it works, since the daemon launches the runs; `make ui` shows them
afterwards. Modules that take seconds to import are imported after the first line of output.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import Timeout
from rich.console import Console

from hapvr.errors import HapvrError
from hapvr.networks.copies import INSTALL_HINT
from hapvr.steps.project import record_configuration
from hapvr.video.kept_workers import end_idle_workers
from pipelines.resources import CHECKOUT, WITHOUT_COPIES, config_path, open_project
from pipelines.ui import LOOPBACK, ServerError, free_port, only_server, servers, start_dagster

if TYPE_CHECKING:
    import dagster as dg
    from dagster_graphql import DagsterGraphQLClient

    from hapvr.steps.project import Project

QUERY_FILE = "query.mp4"
ANSWERS = 3
BEST_MEAN = 0.99995
"""The least mean that is shown as 100.00 %."""


class DemoFailure(Exception):
    """A run failed; the message is for people."""


def _follow(instance: dg.DagsterInstance, console: Console, runs: Sequence[str]) -> None:
    """Wait for runs to end, and print the messages of a training. Raises DemoFailure with the
    reason of the first run that fails."""
    import dagster as dg

    cursors: dict[str, str | None] = dict.fromkeys(runs)
    while cursors:
        time.sleep(0.5)
        for run in instance.get_runs(dg.RunsFilter(run_ids=list(cursors))):
            connection = instance.get_records_for_run(run.run_id, cursor=cursors[run.run_id])
            cursors[run.run_id] = connection.cursor
            for record in connection.records:
                _print_training_line(record.event_log_entry, console)
            if run.is_finished:
                _raise_if_failed(instance, run)
                del cursors[run.run_id]


def _print_training_line(entry: dg.EventLogEntry, console: Console) -> None:
    """Print a message of a training; the link to MLflow's page works only under `make ui`."""
    of_training = entry.dagster_event is None and entry.step_key == "similarity_model"
    if of_training and not entry.user_message.startswith(("[pipes]", "MLflow run")):
        console.print(f"        {entry.user_message}", markup=False, highlight=False)


def _raise_if_failed(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    from pipelines.monitoring import failure_reason

    if run.is_success:
        return
    reason = failure_reason(instance, run.run_id)
    raise DemoFailure(f"{reason}\nThe log is in the UI (`make ui`) under run {run.run_id}.")


def main() -> int:
    """0: registered; 1: a step failed; 2: the configuration is wrong, or the instance is in use;
    130: interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that runs and servers are ended
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
    console = Console(soft_wrap=True)
    home = Path(os.environ.setdefault("DAGSTER_HOME", str(CHECKOUT / "dagster_home")))
    try:
        project = open_project()
        record_configuration(project)
        _print_beginning(console)
        with only_server(home):
            _run(project, home, console)
    except Timeout:
        console.print(
            f"`make ui` or `make demo` is using {home}: end it first, or set DAGSTER_HOME to "
            "another folder."
        )
        return 2
    except (HapvrError, DemoFailure, ServerError) as error:
        console.print(str(error), markup=False)
        return 2 if isinstance(error, HapvrError) else 1
    except KeyboardInterrupt:
        return 130

    return 0


def _print_beginning(console: Console) -> None:
    console.print(
        f"{config_path()}: from its videos to a registered model and an index; Dagster is starting"
    )
    if config_path() in WITHOUT_COPIES.values():
        console.print(
            f"The networks for copies are not installed, so most answers will be unsure; "
            f"{INSTALL_HINT}",
            markup=False,
        )


def _run(project: Project, home: Path, console: Console) -> None:
    """Run the jobs, then print scores and the answer of a search. home: of the instance, which
    nobody else uses. Runs that are not finished at the end are reported as canceled."""
    import dagster as dg
    from dagster_graphql import DagsterGraphQLClient

    launched: list[str] = []
    with dg.DagsterInstance.get() as instance:
        try:
            with (home / "demo.log").open("wb") as log, servers(log) as start:
                port = free_port()
                start_dagster(start, host=LOOPBACK, port=port, can_reload=False)
                client = DagsterGraphQLClient(LOOPBACK, port_number=port)
                _run_jobs(client, instance, console, launched, project)
                print_summary(project, console)
                print_answer(project, console)
        finally:
            runs = instance.get_runs(dg.RunsFilter(run_ids=launched)) if launched else []
            for run in runs:
                if not run.is_finished:  # its process has ended with the servers
                    instance.report_run_canceled(run)


def _run_jobs(
    client: DagsterGraphQLClient,
    instance: dg.DagsterInstance,
    console: Console,
    launched: list[str],
    project: Project,
) -> None:
    """Run the jobs one after the other; those of shards run once for each shard. launched: receives
    the ids of the runs."""
    from hapvr.chain import JOBS
    from hapvr.chain.step import shards_of
    from pipelines.automation import ON_REQUEST

    jobs = {job: steps for job, steps in JOBS.items() if job not in ON_REQUEST}
    for number, (job, steps) in enumerate(jobs.items(), start=1):
        began = time.monotonic()
        shards = shards_of(project, steps[0])
        first = len(launched)
        for shard in shards:
            tags = {"dagster/partition": shard} if shard else None
            launched.append(client.submit_job_execution(job, tags=tags))

        _follow(instance, console, launched[first:])

        parts = [step.name for step in steps]
        if steps[0].per_shard:
            parts.append(f"{len(shards)} shards")
        seconds = time.monotonic() - began
        line = f"[{number}/{len(jobs)}] {job:<12} {', '.join(parts)}: {seconds:.1f} s"
        console.print(line, markup=False, highlight=False)


def print_summary(project: Project, console: Console) -> None:
    """Print the current model's scores beside the baseline's, the registered version, lost videos,
    and where to look."""
    import polars as pl

    from hapvr.care.health import health
    from hapvr.steps.quality import video_status

    for name in project.config.evaluation.benchmarks:
        _print_scores(project, name, console)
    if project.config.evaluation.benchmarks:
        console.print(f"seed {project.config.train.seed}; other seeds were not run")

    failed = video_status(project).filter(pl.col("status") != "ok")
    lines = [
        f"{row['video_id']}: {row['reason']}: {row['message']}"
        for row in failed.head(20).iter_rows(named=True)
    ]
    lines += health(project).lines()
    lines.append(f"data: {project.root.url}; `make ui` shows it and the Dagster graph")
    if project.root.local is not None:
        lines.append(f"every verb takes it by `--data {_from_checkout(project.root.local)}`")
    console.print("\n".join(lines), markup=False, highlight=False)


def _print_scores(project: Project, name: str, console: Console) -> None:
    """Print the table of a benchmark, and a sentence if the training did not help."""
    from rich.table import Table

    from hapvr.steps.evaluation import BASELINE, TRAINED, stored_scores
    from hapvr.steps.training import trained_run

    scores = stored_scores(project, trained_run(project), name)
    results = scores["results"]
    means = scores["target_means"]
    policy = project.config.evaluation.policy
    table = Table(title=f"{name} (policy {policy}): mAP of *SR, micro-AP of the others, in %")
    table.add_column("")
    for task in (*next(iter(results.values()))["metrics"], "mean"):
        table.add_column(task, justify="right")
    for row, result in results.items():
        values = [*result["metrics"].values(), means[row]]
        percent = [f"{100 * value:.2f}" for value in values]
        table.add_row(row, *percent)

    console.print(table)
    sentence = sentence_without_gain(name, trained=means[TRAINED], untrained=means[BASELINE])
    if sentence:
        console.print(sentence)


def sentence_without_gain(name: str, *, trained: float, untrained: float) -> str:
    """Why a training did not help on a benchmark, from the means of its tasks; "" if it did."""
    if trained > untrained:
        return ""
    if untrained >= BEST_MEAN:
        return (
            f"{name} cannot tell whether training helps, as the untrained baseline finds all of "
            "its copies; more held-out clips make it harder."
        )

    return (
        f"The trained model does not beat the untrained baseline on {name}: "
        f"{100 * trained:.2f} against {100 * untrained:.2f}. More training videos or more views "
        "usually help."
    )


def _from_checkout(path: Path) -> str:
    """A path to be typed in the checkout."""
    return os.path.relpath(path, CHECKOUT) if path.is_relative_to(CHECKOUT) else str(path)


def print_answer(project: Project, console: Console) -> None:
    """Search for an edited part of a training video, and print what `hapvr search` answers."""
    import typer

    from hapvr.commands.search import search

    query = project.root.local_path(QUERY_FILE)
    source = _write_query(project, query)
    if source is None:
        return
    shown = _from_checkout(query)
    words = ["hapvr", "search", shown, "--config", config_path(), "--top", str(ANSWERS)]
    text = f"\nA search for an edited part of {source}:\n$ .venv/bin/{shlex.join(words)}"
    console.print(text, markup=False, highlight=False)
    with suppress(typer.Exit):  # it has printed why
        search(config=CHECKOUT / config_path(), queries=[shown], top=ANSWERS)


def _write_query(project: Project, query: Path) -> str | None:
    """An edited part of the first training video in the index; its id, None where there is none."""
    from hapvr.demo.showcase import write_edited_part
    from hapvr.video.pool import in_workers

    source = _first_training_video(project)
    if source is None:
        return None
    video_id, file = source
    write = partial(write_edited_part, query=query)
    for _, failure in in_workers(write, [file], config=project.config.sampling):
        if failure is not None:
            raise failure

    return video_id


def _first_training_video(project: Project) -> tuple[str, Path] | None:
    """Id and file of the first training video in the index; None where there is none."""
    from hapvr.data.manifest import read_manifest
    from hapvr.search.current import current_index
    from hapvr.video.sources import path_of_text

    indexed = current_index(project.root).open(project.root, project.config.search).videos()
    training = read_manifest(project.root).filter(split="train").sort("video_id")
    for row in training.iter_rows(named=True):
        file = path_of_text(row["uri"])
        if row["video_id"] in indexed and file.is_file():
            return str(row["video_id"]), file

    return None


def _read_arguments() -> None:
    """There is no argument but --help."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.demo",
        description="The whole chain, from videos to a registered model, an index and the answer "
        "of a search; `make demo` and `make demo VIDEOS=DIR` call it.",
        epilog="Variables: HAPVR_CONFIG names another configuration than configs/demo.yaml, "
        "HAPVR_VIDEOS the folder of clips of configs/own_videos.yaml, and DAGSTER_HOME the "
        "instance.",
    )
    parser.parse_args()


if __name__ == "__main__":
    _read_arguments()
    code = main()
    sys.stdout.flush()
    end_idle_workers()  # which `os._exit` leaves behind
    os._exit(code)  # so that an interrupted user need not wait while Python unloads its modules
