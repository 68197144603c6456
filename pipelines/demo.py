"""`make demo`: the jobs from the sources to a registered model and an index, one after the other, and a table of scores at the end.

python -m pipelines.demo

It starts Dagster for as long as it works, since the daemon launches the runs; `make ui` shows them afterwards.
"""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
from dagster_graphql import DagsterGraphQLClient, DagsterGraphQLClientError
from filelock import Timeout
from rich.console import Console

from assets.partitions import SHARDS
from hapvr import chain
from hapvr.errors import HapvrError
from pipelines.jobs import ON_REQUEST
from pipelines.resources import CHECKOUT, project_resource
from pipelines.summary import print_summary
from pipelines.ui import LOOPBACK, ServerError, dagster_running, free_port, only_server

JOBS = {job: steps for job, steps in chain.JOBS.items() if job not in ON_REQUEST}
ASSETS = [step.name for steps in JOBS.values() for step in steps]
POLL_S = 0.5


class DemoFailure(Exception):
    """A run or the server failed; the message is for people."""


@dataclass
class Runs:
    """The runs of one job, and how far they are.

    cursors: by run id, up to where its events were read; moments: when its last step or asset ended; seconds: by asset, summed
    over its runs.
    """

    instance: dg.DagsterInstance
    console: Console
    cursors: dict[str, str | None]
    moments: dict[str, float] = field(default_factory=dict)
    made: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)

    def wait(self) -> None:
        """Follow all runs to their end. Raises DemoFailure with the reason of the first that fails."""
        unfinished = list(self.cursors)
        while unfinished:
            time.sleep(POLL_S)
            for run_id in list(unfinished):
                run = self.instance.get_run_by_id(run_id)
                self._read(run_id)
                if run is not None and run.is_finished:
                    unfinished.remove(run_id)
                    if not run.is_success:
                        raise DemoFailure(
                            f"{failure_reason(self.instance, run_id)}\n"
                            f"The log is in the UI (`make ui`) under run {run_id}."
                        )

    def _read(self, run_id: str) -> None:
        """Print what is new in the log of a run."""
        connection = self.instance.get_records_for_run(run_id, cursor=self.cursors[run_id])
        self.cursors[run_id] = connection.cursor
        for record in connection.records:
            entry, event = record.event_log_entry, record.event_log_entry.dagster_event
            if event is None:
                if entry.step_key == "similarity_model" and not entry.user_message.startswith("[pipes]"):
                    self.console.print(f"        {entry.user_message}", markup=False, highlight=False)
            elif event.is_step_start:
                self.moments[run_id] = entry.timestamp
            elif event.is_step_materialization and event.asset_key is not None:
                self._count(
                    event.asset_key.to_user_string(), entry.timestamp - self.moments.get(run_id, entry.timestamp)
                )
                self.moments[run_id] = entry.timestamp

    def _count(self, asset: str, seconds: float) -> None:
        """Print the line of an asset when it was made for the last of its partitions."""
        self.made[asset] += 1
        self.seconds[asset] = self.seconds.get(asset, 0.0) + seconds
        if self.made[asset] == len(self.cursors):
            count = f"{len(self.cursors)} shards" if chain.CHAIN[asset].per_shard else ""
            position = f"[{ASSETS.index(asset) + 1:2d}/{len(ASSETS)}]"
            line = f"{position} {asset:<18} {count:<14} {self.seconds[asset]:6.1f} s"
            self.console.print(line, markup=False, highlight=False)


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


@contextmanager
def dagster_server(home: Path) -> Iterator[DagsterGraphQLClient]:
    """Dagster's web server and daemon on a free port of this machine, once they answer; they end with the context."""
    port, log = free_port(), home / "demo.log"
    with log.open("wb") as stream:
        try:
            with dagster_running(host=LOOPBACK, port=port, stdout=stream, stderr=stream):
                yield DagsterGraphQLClient(LOOPBACK, port_number=port)
        except ServerError as error:
            raise DemoFailure(f"Dagster did not start: {error}; see {log}") from error


def run_all(client: DagsterGraphQLClient, instance: dg.DagsterInstance, console: Console) -> None:
    """Launch the jobs one after the other; those of shards once for each shard. Raises DemoFailure for the first that fails."""
    for job, steps in JOBS.items():
        shards = sorted(instance.get_dynamic_partitions(SHARDS.name or "")) if steps[0].per_shard else [None]
        launched: list[str] = []
        try:
            for shard in shards:
                tags = {"dagster/partition": shard} if shard else None
                launched.append(client.submit_job_execution(job, tags=tags))
            Runs(instance, console, dict.fromkeys(launched)).wait()
        except BaseException:
            with suppress(DagsterGraphQLClientError):  # the server may have been interrupted, too
                client.terminate_runs(launched)
            raise


def main() -> int:
    """0: registered; 1: a stage failed; 2: the configuration is wrong, or the instance is in use; 130: interrupted."""
    console = Console(soft_wrap=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that runs and server are ended
    home = Path(os.environ.setdefault("DAGSTER_HOME", str(CHECKOUT / "dagster_home")))
    try:
        project = project_resource().open()
        with only_server(home), dagster_server(home) as client, dg.DagsterInstance.get() as instance:
            run_all(client, instance, console)
    except HapvrError as error:
        console.print(str(error), markup=False)
        return 2
    except Timeout:
        console.print(f"`make ui` or `make demo` is using {home}: end it first, or set DAGSTER_HOME to another folder.")
        return 2
    except DemoFailure as error:
        console.print(str(error), markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    print_summary(project, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
