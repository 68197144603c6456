"""MLflow runs, by explicit client and run id: no active run, no global state."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from mlflow.artifacts import download_artifacts
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunStatus, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.mlflow_tags import MLFLOW_SOURCE_NAME, MLFLOW_SOURCE_TYPE, MLFLOW_USER

from hapvr.tracking.pages import run_page
from hapvr.tracking.store import is_server, require_store

RUN_KEY_TAG = "hapvr.run_key"
MAX_PARAM_CHARACTERS = 6000
DATASET_DIGEST_CHARACTERS = 32  # of the 36 that MLflow takes
DATASET_CONTEXT = "mlflow.data.context"
KIND = {"mlflow.experimentKind": "custom_model_development"}  # an experiment of trainings, not of conversations


class Tracker:
    """Runs of one experiment. uri: an MLflow server or `sqlite:///...`; artifacts: root for those of a local store.

    Without that they lie beside its database, in `artifacts`. Raises DataError if no server answers there.
    """

    def __init__(self, uri: str, experiment: str, *, artifacts: Path | None = None) -> None:
        if uri.startswith("sqlite:///"):
            folder = Path(uri.removeprefix("sqlite:///")).parent
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

        place: path or URL; context: training, evaluation. MLflow refuses data that another run is recording at the same
        moment; the second try then finds it.
        """
        scheme = place.partition("://")[0] if "://" in place else "local"
        data = Dataset(
            name=name,
            digest=digest[:DATASET_DIGEST_CHARACTERS],
            source_type=scheme,
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
        now = int(time.time() * 1000)
        self.client.log_batch(run_id, metrics=[Metric(name, float(value), now, step) for name, value in values.items()])

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

    def fail_if_running(self, run_id: str) -> bool:
        """Mark a run as failed if MLflow says that it still runs. Returns whether it did."""
        running = self.client.get_run(run_id).info.status == RunStatus.to_string(RunStatus.RUNNING)
        if running:
            self.end(run_id, failed=True)
        return bool(running)

    def page(self, run_id: str, base: str | None) -> str:
        """Address of the run's page on an MLflow server at `base`; empty without one."""
        return run_page(base, self.experiment_id, run_id) if base else ""


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
