"""The resource through which every asset gets its configuration and data root."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import psutil

if TYPE_CHECKING:
    from hapvr.steps.project import Project

SHARDS = dg.DynamicPartitionsDefinition(name="shards")
"""The one set of partitions: shards of videos."""
GPU_POOL = "gpu"
"""Runs with an asset of this pool follow one another: dagster.yaml gives the pool one run at a
time.
"""
PROCESS_TAG = "hapvr/process"
DATA_TEAM = "team:data"
MODEL_TEAM = "team:models"


def process_tag(process: psutil.Process) -> str:
    """`host@pid:start`, by which another process on this machine recognises it."""
    return f"{socket.gethostname()}@{process.pid}:{started_s(process):.2f}"


def started_s(process: psutil.Process) -> float:
    """Seconds from the start of the machine to the start of a process. If the clock is set, both
    times move; their difference does not."""
    return float(process.create_time() - psutil.boot_time())


class ProjectResource(dg.ConfigurableResource):
    """A configuration file, the folder its relative paths start from, and values that replace some
    of its keys."""

    config_path: str
    folder: str
    overrides: dict[str, str]
    mlflow_page: str = "http://127.0.0.1:5000"
    dagster_page: str = "http://127.0.0.1:3000"

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Record on the run which process executes it, see `process_tag`."""
        if context.run is not None and context.instance is not None:
            tags = {PROCESS_TAG: process_tag(psutil.Process())}
            context.instance.add_run_tags(context.run.run_id, tags)

    def open(self) -> "Project":
        """Raises ConfigError naming key and allowed values."""
        from hapvr.steps.project import Project

        folder = Path(self.folder)
        return Project.open(folder / self.config_path, folder=folder, overrides=self.overrides)

    def dagster_tags(self, run_id: str) -> dict[str, str]:
        """Tags that lead from an MLflow run back to the Dagster run that made it; its page shows
        the note at the top."""
        page = f"{self.dagster_page.rstrip('/')}/runs/{run_id}"
        note = f"Made by [Dagster run {run_id[:8]}]({page})."
        return {
            "dagster.run_id": run_id,
            "mlflow.source.name": "dagster",
            "mlflow.note.content": note,
        }

    def run_link(self, project: "Project", run_id: str) -> dg.MetadataValue:
        """Link to a run's page in MLflow; `make ui` serves it at `mlflow_page` unless a server is
        configured."""
        from hapvr.steps.training import tracker_of

        experiment = tracker_of(project).experiment_id
        return self._link(project, f"experiments/{experiment}/runs/{run_id}")

    def version_link(self, project: "Project", name: str, version: int) -> dg.MetadataValue:
        """Link to a version's page in MLflow's registry."""
        return self._link(project, f"models/{name}/versions/{version}")

    def _link(self, project: "Project", page: str) -> dg.MetadataValue:
        from hapvr.registry.client import without_login

        uri = without_login(project.config.tracking.uri or "")
        base = uri if uri.startswith("http") else self.mlflow_page
        # Without the mode MLflow's pages show conversations first, and hide runs and models.
        return dg.MetadataValue.url(f"{base.rstrip('/')}/#/{page}?workflowType=machine_learning")
