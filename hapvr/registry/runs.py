"""MLflow runs, by explicit client and run id; and what a training reports to its run.

A training continues while MLflow is unreachable: the run gets the metrics later, at the latest
when the training is finished.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import LifecycleStage, Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.mlflow_tags import MLFLOW_SOURCE_NAME, MLFLOW_SOURCE_TYPE, MLFLOW_USER
from mlflow.utils.time import get_current_time_millis

from hapvr.errors import DataError
from hapvr.provenance import flat
from hapvr.registry.client import is_server, open_client, require_store
from hapvr.registry.moved_database import SQLITE, database_of

RUN_KEY_TAG = "hapvr.run_key"
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""An experiment of trainings, not of conversations."""


class Tracker:
    """Runs of one experiment."""

    def __init__(self, uri: str, experiment: str) -> None:
        """uri: an MLflow server or `sqlite:///...`, whose artifacts are stored next to it, in
        `artifacts`. Raises RegistryError if no server answers there."""
        location = None
        if uri.startswith(SQLITE):
            folder = database_of(uri).resolve().parent
            folder.mkdir(parents=True, exist_ok=True)
            location = (folder / "artifacts").as_uri()
        else:
            require_store(uri)

        self.uri = uri
        self.client = open_client(uri)
        there = self.client.get_experiment_by_name(experiment)
        if there is None:
            experiment_id = self.client.create_experiment(experiment, location, KIND)
        else:
            experiment_id = there.experiment_id

        self.experiment_id = str(experiment_id)

    def start(
        self, key: str, *, name: str, params: Mapping[str, Any], tags: Mapping[str, str]
    ) -> str:
        """The id of the run with this key, which is made if there is none: a retried or resumed
        training continues its own run."""
        runs = self.client.search_runs(
            [self.experiment_id], f"tags.`{RUN_KEY_TAG}` = '{key}'", max_results=1
        )
        if runs:
            run = runs[0]
            self.client.update_run(run.info.run_id, status="RUNNING")
        else:
            run = self.client.create_run(
                self.experiment_id, run_name=name, tags={**_origin_tags(), RUN_KEY_TAG: key, **tags}
            )

        run_id = str(run.info.run_id)
        if not run.data.params:  # the training may have been killed in between
            self.client.log_batch(
                run_id, params=[Param(key, str(value)) for key, value in flat(params).items()]
            )

        self.tag(run_id, {key: tags[key] for key in tags.keys() - run.data.tags.keys()})
        return run_id

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        self.client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def metrics(self, run_id: str, values: Mapping[str, float]) -> None:
        """Log values without a step. MLflow allows letters, digits, _ - . / and spaces in their
        names."""
        now = get_current_time_millis()
        self.client.log_batch(
            run_id, metrics=[Metric(name, value, now, 0) for name, value in values.items()]
        )

    def artifact(self, run_id: str, path: str) -> Path | None:
        """A local copy of a run's artifact; None if the run does not have it, or is gone."""
        try:
            return Path(self.client.download_artifacts(run_id, path))
        except (MlflowException, OSError):
            return None

    def tables(self) -> Iterator[tuple[str, str]]:
        """Run and path of each table of an evaluation among the artifacts of all runs, including
        deleted ones."""
        for run_id in [run.info.run_id for run in self.runs()]:
            for folder in self.client.list_artifacts(run_id, "benchmarks"):
                files = self.client.list_artifacts(run_id, folder.path)
                tables = [file.path for file in files if file.path.endswith(".parquet")]
                yield from ((run_id, path) for path in tables)

    def runs(self) -> Iterator[Run]:
        """All runs of the experiment, including deleted ones."""
        token = None
        while token != "":
            page = self.client.search_runs(
                [self.experiment_id], run_view_type=ViewType.ALL, page_token=token
            )
            yield from page
            token = page.token or ""

    def removable(self, moment_s: float) -> dict[str, str]:
        """Id -> key of the runs that ended before a moment, in seconds since 1970, and made no
        registered version."""
        runs = list(self.runs())
        keys = {
            run.info.run_id: run.data.tags[RUN_KEY_TAG]
            for run in runs
            if RUN_KEY_TAG in run.data.tags and _has_ended(run, moment_s)
        }
        removed = {run_id for run_id in keys if not self._has_version(run_id)}
        # a key may be used again
        kept_keys = {
            run.data.tags.get(RUN_KEY_TAG) for run in runs if run.info.run_id not in removed
        }
        return {run_id: keys[run_id] for run_id in removed if keys[run_id] not in kept_keys}

    def _has_version(self, run_id: str) -> bool:
        """Whether a registered version was made of the run."""
        return bool(self.client.search_model_versions(f"run_id = '{run_id}'", max_results=1))

    def remove(self, run_ids: Sequence[str]) -> None:
        """Remove runs with their artifacts and logged models; a server only marks them. Raises
        DataError where that fails."""
        models: list[str] = []
        for run_id in run_ids:
            if self.client.get_run(run_id).info.lifecycle_stage == LifecycleStage.ACTIVE:
                self.client.delete_run(run_id)
            logged = self.client.search_logged_models(
                [self.experiment_id], filter_string=f"source_run_id = '{run_id}'"
            )
            models += [model.model_id for model in logged]

        for model_id in models:
            self.client.delete_logged_model(model_id)
        if run_ids and not is_server(self.uri):
            self._collect_garbage(run_ids, models)

    def _collect_garbage(self, run_ids: Sequence[str], models: Sequence[str]) -> None:
        """Remove deleted runs and models from a database, with their artifacts."""
        command = [sys.executable, "-m", "mlflow", "gc"]
        command += ["--backend-store-uri", self.uri, "--tracking-uri", self.uri]
        command += ["--run-ids", ",".join(run_ids)]
        if models:
            command += ["--logged-model-ids", ",".join(models)]
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            raise DataError(
                f"tracking: old runs could not be removed: {ended.stderr.strip()[-300:]}; this is "
                "tried again"
            )


def _origin_tags() -> dict[str, str]:
    """Tags for "Created by" and "Source" on the page of a run."""
    origin = resolve_tags()
    tags = {tag: origin[tag] for tag in (MLFLOW_USER, MLFLOW_SOURCE_TYPE) if tag in origin}
    tags[MLFLOW_SOURCE_NAME] = Path(origin.get(MLFLOW_SOURCE_NAME, "")).name
    return tags


def _has_ended(run: Run, moment_s: float) -> bool:
    """Whether a run ended before a moment, in seconds since 1970."""
    if run.info.status == "RUNNING" or not run.info.end_time:
        return False
    return bool(run.info.end_time < 1000 * moment_s)


def complete_metrics(
    client: MlflowClient, run_id: str, history: Sequence[Mapping[str, float]]
) -> None:
    """Log what a run lacks of a training's history, each line of which has a `step` and its
    metrics."""
    names = set().union(*history) - {"step"}
    logged_steps = {
        name: {metric.step for metric in client.get_metric_history(run_id, name)} for name in names
    }
    lacking = []
    for line in history:
        for name, value in line.items():
            if name != "step" and line["step"] not in logged_steps[name]:
                lacking.append(Metric(name, value, get_current_time_millis(), int(line["step"])))

    client.log_batch(run_id, metrics=lacking)


class TrackedTraining:
    """A training logger that writes to one MLflow run in the background. While MLflow is
    unreachable, its client says so, and the training goes on. The metrics that were lost are in the
    training's history, and `complete_metrics` delivers them later."""

    def __init__(self, uri: str, run_id: str) -> None:
        self._client = MlflowClient(tracking_uri=uri)
        self._run_id = run_id

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        now = get_current_time_millis()
        metrics = [Metric(name, float(value), now, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics, synchronous=False)

    def message(self, text: str) -> None:
        """Do nothing: messages are for logs."""

    def close(self) -> None:
        """Deliver the rest, if the server answers."""
        mlflow.set_tracking_uri(self._client.tracking_uri)
        mlflow.flush_async_logging()
