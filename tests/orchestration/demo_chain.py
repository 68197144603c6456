"""`make demo` on a small project, and what Dagster and MLflow have of it afterwards."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import psutil
from mlflow.entities.model_registry import ModelVersion

from hapvr.registry.versions import LINEAGE_FILE
from hapvr.steps.project import Project
from hapvr.steps.training import tracker_of
from tests.conftest import CHECKOUT
from tests.orchestration.servers import environment_in, packaged_settings, wait_until

PARTITIONED = (
    "videos",
    "frames",
    "features",
    "training_views",
    "pseudo_labels",
    "frame_descriptors",
)
MLFLOW_PAGE = "http://127.0.0.1:5001"


SHOWN = {
    **{asset: {"dagster/column_schema"} for asset in PARTITIONED},
    "frames": {"dagster/column_schema", "contact_sheet"},
    "video_manifest": {"rows", "videos_by_source"},
    "similarity_model": {"loss_curves", "validation_curve", "mlflow_run"},
    "benchmark_scores": {
        "metrics",
        "own-test: mAP DSVR",
        "own-test: precision-recall-DSVR",
        "mlflow_run",
    },
    "registered_model": {"version", "decision", "mlflow_run", "model_card"},
}
"""Metadata that assets have beside path and digest."""


@dataclass(frozen=True)
class Chain:
    """All jobs have run."""

    project: Project
    instance: dg.DagsterInstance
    retrained: dg.DagsterRun
    """the run that trained"""
    said: str
    """what the demo printed"""


@dataclass(frozen=True)
class Interrupted:
    """A `make demo` that Ctrl-C ended while its first job ran."""

    folder: Path
    """of its project"""
    said: str
    """what it printed"""
    running: list[psutil.Process]
    """what it started and did not end"""


def interrupted_demo(folder: Path, clips: Path) -> Interrupted:
    """Run `make demo` on a small project in this folder, and send it Ctrl-C at its first job."""
    environment = environment_in(folder, packaged_settings(clips, folder / "data"))
    venv = Path(sys.executable).parent.parent
    command = ["make", "--assume-old", f"{venv}/.installed", f"VENV={venv}"]
    command += [f"DAGSTER_HOME={environment['DAGSTER_HOME']}", "demo"]
    printed = folder / "printed.txt"
    with printed.open("wb") as output:
        make = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=CHECKOUT,
            env=environment,
            start_new_session=True,
        )

    wait_until(lambda: "find_videos" in printed.read_text(encoding="utf-8"), "the first job")
    family = psutil.Process(make.pid).children(recursive=True)
    os.killpg(make.pid, signal.SIGINT)
    make.wait(timeout=60)
    _, left = psutil.wait_procs(family, timeout=60)
    running = [process for process in left if _is_running(process)]
    return Interrupted(folder, printed.read_text(encoding="utf-8"), running)


def _is_running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def latest(chain: Chain, asset: str, shard: str = "own-train-00000") -> dg.AssetMaterialization:
    """The last materialisation of an asset; of a partitioned one, that of this shard."""
    partitions = [shard] if asset in PARTITIONED else None
    records = chain.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset), asset_partitions=partitions), limit=1
    ).records
    assert records, asset
    return records[0].asset_materialization


def data_digests(chain: Chain, version: ModelVersion) -> dict[str, str]:
    """Of all that a version was trained on, as its lineage says."""
    client = tracker_of(chain.project).client
    lineage = Path(client.download_artifacts(version.run_id, LINEAGE_FILE))
    digests: dict[str, str] = json.loads(lineage.read_text(encoding="utf-8"))["data_digests"]
    return digests


def checks_of(chain: Chain, asset: str, check: str) -> list[str]:
    """How a check of an asset ended, each time."""
    key = dg.AssetCheckKey(dg.AssetKey(asset), check)
    history = chain.instance.event_log_storage.get_asset_check_execution_history(key, limit=100)
    return [record.status.value for record in history]
