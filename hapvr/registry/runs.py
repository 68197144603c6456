"""MLflow runs, by explicit client and run id: no active run, no global state; and what a training tells its run.

A training continues where MLflow is away: its metrics and files stay in the run's folder until the run has them.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from mlflow.artifacts import download_artifacts
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunStatus, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.mlflow_tags import MLFLOW_SOURCE_NAME, MLFLOW_SOURCE_TYPE, MLFLOW_USER
from pydantic import TypeAdapter

from hapvr.files import read_json_lines, write_atomic
from hapvr.registry.client import SQLITE, is_server, require_store
from hapvr.settings import first_line

if TYPE_CHECKING:
    from hapvr.train.run_folder import BatchReport

RUN_KEY_TAG = "hapvr.run_key"
MAX_PARAM_CHARACTERS = 6000
DATASET_DIGEST_CHARACTERS = 32  # of the 36 that MLflow takes
DATASET_CONTEXT = "mlflow.data.context"
PENDING_NAME = "not-yet-tracked.jsonl"
BATCHES = "batches"
BATCH_FILE = re.compile(r"(similarity-\d{8}\.png|hardest-negatives-\d{8}\.csv)")
MAX_METRICS = 1000  # that MLflow takes in one request
KIND = {"mlflow.experimentKind": "custom_model_development"}  # an experiment of trainings, not of conversations


class Tracker:
    """Runs of one experiment. uri: an MLflow server or `sqlite:///...`; artifacts: root for those of a local store.

    Without it, they lie next to its database, in `artifacts`. Raises DataError if no server answers there.
    """

    def __init__(self, uri: str, experiment: str, *, artifacts: Path | None = None) -> None:
        if uri.startswith(SQLITE):
            folder = Path(uri.removeprefix(SQLITE)).parent
            folder.mkdir(parents=True, exist_ok=True)
            artifacts = artifacts or folder / "artifacts"
        if is_server(uri):
            require_store(uri)
        self.uri = uri
        self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        found = self.client.get_experiment_by_name(experiment)
        if found is not None:
            self.experiment_id = str(found.experiment_id)
        else:
            location = artifacts.resolve().as_uri() if artifacts is not None else None
            self.experiment_id = str(self.client.create_experiment(experiment, artifact_location=location, tags=KIND))

    def start(self, key: str, *, name: str, params: Mapping[str, Any], tags: Mapping[str, str]) -> str:
        """The id of the run with this key, which is made if necessary.

        So a retried or resumed training continues its own run.
        """
        found = self.client.search_runs(
            [self.experiment_id], filter_string=f"tags.`{RUN_KEY_TAG}` = '{key}'", max_results=1
        )
        if found:
            run_id = str(found[0].info.run_id)
            self.client.update_run(run_id, status=RunStatus.to_string(RunStatus.RUNNING))
        else:
            run = self.client.create_run(self.experiment_id, run_name=name, tags=_origin() | {RUN_KEY_TAG: key})
            run_id = str(run.info.run_id)
            entries = [Param(key, str(value)[:MAX_PARAM_CHARACTERS]) for key, value in flat(params).items()]
            for start in range(0, len(entries), 100):
                self.client.log_batch(run_id, params=entries[start : start + 100])
        self.tag(run_id, tags)
        return run_id

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        self.client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def dataset(
        self, run_id: str, *, name: str, digest: str, place: str, profile: Mapping[str, Any], context: str
    ) -> None:
        """Record data that the run used, so that MLflow can show and find it.

        place: path, or URL, of which login and query stay out; context: training, evaluation. MLflow refuses data that another
        run is recording at the same moment; the second try then finds it.
        """
        place = place if "://" not in place else re.sub(r"(?<=://)[^/@]*@|\?.*", "", place)
        data = Dataset(
            name=name,
            digest=digest[:DATASET_DIGEST_CHARACTERS],
            source_type=place.partition("://")[0] if "://" in place else "local",
            source=json.dumps({"uri": place}),
            profile=json.dumps(dict(profile)),
        )
        inputs = [DatasetInput(data, tags=[InputTag(DATASET_CONTEXT, context)])]
        try:
            self.client.log_inputs(run_id, datasets=inputs)
        except MlflowException:
            self.client.log_inputs(run_id, datasets=inputs)

    def metrics(self, run_id: str, values: Mapping[str, float], *, step: int = 0) -> None:
        """Log values of one step. Names may hold what MLflow allows: letters, digits, _ - . / and spaces."""
        self.client.log_batch(run_id, metrics=_metrics(PendingMetrics(step, _now_ms(), dict(values))))

    def figure(self, run_id: str, figure: Figure, name: str) -> None:
        """A picture under `figures/`."""
        self.client.log_figure(run_id, figure, f"figures/{name}.png")

    def file(self, run_id: str, path: Path, folder: str) -> None:
        """A copy of a local file under `folder`."""
        self.client.log_artifact(run_id, str(path), folder)

    def artifact(self, run_id: str, path: str) -> Path | None:
        """A local copy of a run's artifact; None if the run does not have it, or is gone."""
        try:
            return Path(download_artifacts(run_id=run_id, artifact_path=path, tracking_uri=self.uri))
        except (MlflowException, OSError):
            return None

    def text(self, run_id: str, text: str, name: str) -> None:
        self.client.log_text(run_id, text, name)

    def end(self, run_id: str, *, failed: bool = False) -> None:
        self.client.set_terminated(run_id, status="FAILED" if failed else "FINISHED")

    def fail_if_running(self, run_id: str) -> None:
        """Mark a run as failed if MLflow says that it still runs."""
        if self.client.get_run(run_id).info.status == RunStatus.to_string(RunStatus.RUNNING):
            self.end(run_id, failed=True)


def _origin() -> dict[str, str]:
    """Who makes a run, and with which program: "Created by" and "Source" on its page."""
    found = resolve_tags()
    kept = {name: found[name] for name in (MLFLOW_USER, MLFLOW_SOURCE_TYPE) if name in found}
    return kept | {MLFLOW_SOURCE_NAME: Path(found.get(MLFLOW_SOURCE_NAME, "")).name}


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted names."""
    items: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        items |= flat(inner, name) if isinstance(inner, Mapping) else {name: inner}
    return items


@dataclass(frozen=True)
class PendingMetrics:
    """What was measured at a step; a line of PENDING_NAME."""

    step: int
    time_ms: int
    metrics: dict[str, float]


class PendingReports:
    """Metrics and pictures of batches in a run's folder that its MLflow run does not have yet. Not for several processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / PENDING_NAME
        self._lock = threading.Lock()

    def add(self, entry: PendingMetrics) -> None:
        """Keep metrics."""
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(entry)) + "\n")

    def add_batch(self, step: int, report: BatchReport) -> None:
        """Keep a heat map of the batch's similarities and a table of its hardest negatives."""
        from hapvr.train.plots import hardest_negatives, similarity_figure  # imports torch

        folder = self._folder / BATCHES
        with write_atomic(folder / f"similarity-{step:08d}.png") as part:
            similarity_figure(report).savefig(part, format="png", dpi=80)
        with write_atomic(folder / f"hardest-negatives-{step:08d}.csv") as part:
            part.write_text(hardest_negatives(report), encoding="utf-8")

    def metrics(self) -> list[PendingMetrics]:
        """Oldest first."""
        return read_json_lines(self._path, TypeAdapter(PendingMetrics))

    def files(self) -> list[Path]:
        """Files that `add_batch` made; no other file is ever uploaded."""
        found = sorted((self._folder / BATCHES).glob("*"))
        return [path for path in found if BATCH_FILE.fullmatch(path.name) and not path.is_symlink()]

    def deliver(self, tracker: Tracker, run_id: str) -> int:
        """Send everything and return the number of entries. Errors of MLflow pass through.

        Metrics that were sent before an error are sent again later; MLflow keeps one of two equal ones.
        """
        with self._lock:
            entries, size = self.metrics(), self._path.stat().st_size if self._path.exists() else 0
        metrics = [metric for entry in entries for metric in _metrics(entry)]
        for start in range(0, len(metrics), MAX_METRICS):
            tracker.client.log_batch(run_id, metrics=metrics[start : start + MAX_METRICS])
        with self._lock:
            if left := self._path.read_bytes()[size:] if size else b"":
                with write_atomic(self._path) as part:
                    part.write_bytes(left)
            else:
                self._path.unlink(missing_ok=True)
        files = self.files()
        for path in files:
            tracker.file(run_id, path, BATCHES)
            path.unlink()
        return len(entries) + len(files)


class TrackedTraining:
    """A training logger that writes to one MLflow run from a thread of its own.

    connect: makes the tracker when there is something to deliver. say: tells people that the server is away, or back.
    """

    def __init__(
        self, connect: Callable[[], Tracker], run_id: str, folder: Path, *, say: Callable[[str], None], retry_s: float
    ) -> None:
        self._connect = connect
        self._run_id = run_id
        self._folder = folder
        self._say = say
        self._retry_s = retry_s
        self._pending = PendingReports(folder)
        self._news = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._deliver_all, name="mlflow", daemon=True)
        self._thread.start()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._pending.add(PendingMetrics(step, _now_ms(), {name: float(value) for name, value in values.items()}))
        self._news.set()

    def batch(self, step: int, report: BatchReport) -> None:
        self._pending.add_batch(step, report)
        self._news.set()

    def message(self, text: str) -> None:
        """Messages are for logs."""

    def close(self) -> None:
        """Deliver the rest if the server answers. Otherwise say what the run lacks."""
        self._closing.set()
        self._news.set()
        self._thread.join()
        left = len(self._pending.metrics()) + len(self._pending.files())
        if left:
            self._say(
                f"MLflow: {left} entries of this run are not delivered; they are kept in {self._folder} and delivered when "
                "the run continues or is finished"
            )

    def _deliver_all(self) -> None:
        away = False
        tracker: Tracker | None = None
        while True:
            self._news.wait()
            self._news.clear()
            closing = self._closing.is_set()
            try:
                if self._pending.metrics() or self._pending.files():
                    tracker = tracker or self._connect()
                    sent = self._pending.deliver(tracker, self._run_id)
                    if away:
                        self._say(f"MLflow answers again; {sent} entries were delivered late")
                        away = False
            except Exception as error:  # no error on the way to a server may stop the training
                if not away:
                    self._say(
                        f"MLflow cannot be reached ({first_line(error)}); training continues and keeps its metrics"
                    )
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


def _metrics(entry: PendingMetrics) -> list[Metric]:
    return [Metric(name, float(value), entry.time_ms, entry.step) for name, value in entry.metrics.items()]


def _now_ms() -> int:
    return int(time.time() * 1000)
