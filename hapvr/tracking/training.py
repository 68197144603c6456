"""What a training tells MLflow.

Entries stay on disk until they are delivered, so an unreachable server loses and stops nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from mlflow.entities import Metric
from pydantic import Field, TypeAdapter

from hapvr.files import read_json_lines, write_atomic
from hapvr.settings import first_line
from hapvr.tracking.runs import Tracker
from hapvr.train.plots import hardest_negatives, similarity_figure
from hapvr.train.report import BatchReport

PENDING_NAME = "not-yet-tracked.jsonl"
LATE_TAG = "tracking.delivered_late"
BATCHES = "batches"


@dataclass(frozen=True)
class MetricsEntry:
    """What was measured at a step."""

    step: int
    time_ms: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class FileEntry:
    """A file of the run's folder, directly below BATCHES."""

    file: Annotated[str, Field(pattern=rf"^{BATCHES}/[\w-][\w.-]*$")]


Entry = MetricsEntry | FileEntry
ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)


class Outbox:
    """Entries for one MLflow run.

    A file in the run's folder keeps them until the run has them. Not for several processes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / PENDING_NAME
        self._lock = threading.Lock()

    def add(self, entry: Entry) -> None:
        """Keep an entry."""
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(entry)) + "\n")

    def entries(self) -> list[Entry]:
        """What is not delivered yet, oldest first."""
        with self._lock:
            return self._read()

    def deliver(self, tracker: Tracker, run_id: str) -> int:
        """Send everything and return the number of entries.

        Errors of MLflow pass through; entries sent before stay off the list.
        """
        sent = 0
        for entry in self.entries():
            if isinstance(entry, FileEntry):
                tracker.file(run_id, self._folder / entry.file, BATCHES)
            else:
                metrics = [Metric(name, value, entry.time_ms, entry.step) for name, value in entry.metrics.items()]
                tracker.client.log_batch(run_id, metrics=metrics)
            sent += 1
            self._drop_first()
        return sent

    def _read(self) -> list[Entry]:
        return read_json_lines(self._path, ENTRY)

    def _drop_first(self) -> None:
        with self._lock:
            left = self._read()[1:]
            if not left:
                self._path.unlink()
                return
            with write_atomic(self._path) as part:
                part.write_text("".join(json.dumps(asdict(entry)) + "\n" for entry in left), encoding="utf-8")


class TrackedTraining:
    """A training logger that writes to one MLflow run from a thread of its own.

    connect: makes the tracker when there is something to deliver. say: tells people that the server is away, or back.
    Names of metrics may hold what MLflow allows: letters, digits, _ - . / and spaces.
    """

    def __init__(
        self, connect: Callable[[], Tracker], run_id: str, folder: Path, *, say: Callable[[str], None], retry_s: float
    ) -> None:
        self._connect = connect
        self._run_id = run_id
        self._folder = folder
        self._say = say
        self._retry_s = retry_s
        self._outbox = Outbox(folder)
        self._news = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._deliver_all, name="mlflow", daemon=True)
        self._thread.start()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        numbers = {name: float(value) for name, value in values.items()}
        self._outbox.add(MetricsEntry(step, int(time.time() * 1000), numbers))
        self._news.set()

    def batch(self, step: int, report: BatchReport) -> None:
        """A heat map of the batch's similarities and a table of its hardest negatives, under `batches/`."""
        folder = self._folder / BATCHES
        folder.mkdir(exist_ok=True)
        similarity_figure(report).savefig(folder / f"similarity-{step:08d}.png", dpi=80)
        (folder / f"hardest-negatives-{step:08d}.csv").write_text(hardest_negatives(report), encoding="utf-8")
        for name in (f"similarity-{step:08d}.png", f"hardest-negatives-{step:08d}.csv"):
            self._outbox.add(FileEntry(f"{BATCHES}/{name}"))
        self._news.set()

    def message(self, text: str) -> None:
        """Messages are for logs."""

    def close(self) -> None:
        """Deliver the rest if the server answers. Otherwise say what the run lacks."""
        self._closing.set()
        self._news.set()
        self._thread.join()
        left = len(self._outbox.entries())
        if left:
            self._say(
                f"MLflow: {left} entries of this run are not delivered; they are kept in "
                f"{self._folder / PENDING_NAME} and delivered when the run goes on or is finished"
            )

    def _deliver_all(self) -> None:
        away = False
        tracker: Tracker | None = None
        while True:
            self._news.wait()
            self._news.clear()
            closing = self._closing.is_set()
            try:
                if self._outbox.entries():
                    tracker = tracker or self._connect()
                    sent = self._outbox.deliver(tracker, self._run_id)
                    if away:
                        tracker.tag(self._run_id, {LATE_TAG: f"{sent} entries"})
                        self._say(f"MLflow answers again; {sent} entries were delivered late")
                        away = False
            except Exception as error:  # no error on the way to a server may stop the training
                if not away:
                    self._say(f"MLflow cannot be reached ({first_line(error)}); training goes on and keeps its metrics")
                away = True
                if not closing:
                    self._closing.wait(self._retry_s)
                    self._news.set()
            if closing:
                return


@contextmanager
def tracked_training(
    connect: Callable[[], Tracker], run_id: str, folder: Path, *, say: Callable[[str], None], retry_s: float = 15.0
) -> Iterator[TrackedTraining]:
    """The logger, closed at the end."""
    tracked = TrackedTraining(connect, run_id, folder, say=say, retry_s=retry_s)
    try:
        yield tracked
    finally:
        tracked.close()
