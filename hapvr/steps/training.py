"""Step 8: a training run: its folder, its MLflow run, and the command that trains (asset
`similarity_model`)."""

import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hapvr.config import Config
from hapvr.config_file import dump_config, load_config
from hapvr.errors import DataError
from hapvr.files import digest_of, read_json_as, read_text, write_text
from hapvr.model.checkpoint import DESCRIPTION_FILE
from hapvr.progress import Progress, no_progress
from hapvr.provenance import environment, git_revision, require_settings
from hapvr.registry.runs import Tracker, complete_metrics
from hapvr.registry.versions import LINEAGE_FILE
from hapvr.search.current import serving_index
from hapvr.steps.benchmark_features import check_evaluation
from hapvr.steps.ingested import require_ingested
from hapvr.steps.model_places import CURRENT_NAME, MODELS, RUN_KEY, current_key
from hapvr.steps.project import REGISTRY, Project
from hapvr.steps.training_data import (
    copies_of,
    data_digests,
    labels_digest,
    read_labels,
    training_shards,
)
from hapvr.train import run_folder
from hapvr.train.sources import SOURCES

NETWORK_ARTIFACT = "network"
"""The artifact of an MLflow run with the trained network, for
`hapvr.model.checkpoint.load_network`."""
DAY_S = 86_400.0


@dataclass(frozen=True)
class TrainingRun:
    """A training, whatever became of it."""

    key: str
    """names its folder below `models/`; a retry with the same key resumes from its checkpoint and
    MLflow run"""
    folder: Path
    mlflow_run_id: str

    @property
    def network_folder(self) -> Path:
        return self.folder / "network"


def tracker_of(project: Project) -> Tracker:
    """The MLflow experiment of a project."""
    tracker = Tracker(project.tracking_uri, project.config.tracking.registered_model)
    project.root.note_made(REGISTRY)
    return tracker


def prepare_training(project: Project, key: str, *, tags: Mapping[str, str]) -> TrainingRun:
    """Make or find the run's folder and MLflow run. Before there is any run, raises DataError for a
    bad key or missing inputs, and as `check_evaluation` does."""
    if not RUN_KEY.fullmatch(key):
        raise DataError(
            f"training: run key {key!r} may hold letters, digits, - and _ only, at most 80 of them"
        )

    require_ingested(project.root)
    check_evaluation(project)
    config = project.config
    folder = project.root.local_path(f"{MODELS}/{key}")
    begun = _begun_record(folder)
    # a repeated training goes on with its shards: its record says what the network has seen
    shards = training_shards(project) if begun is None else begun["shards"]
    copies = copies_of(project) if begun is None else begun["copies"]
    labels = read_labels(project, shards, begun=None if begun is None else folder)
    digests = data_digests(project, shards) | labels_digest(labels)
    if begun is not None:
        _require_same_training(config, folder, key, begun, digests)
    (folder / run_folder.FAILURE_NAME).unlink(missing_ok=True)
    write_text(folder / run_folder.CONFIG_NAME, dump_config(config))
    if labels is not None:
        labels.write(folder)
    # identity and precision of the networks that made the data, as the data itself says, or as an
    # online training loads them
    weights = SOURCES[config.train.source].frozen_networks(project.root, shards, config)
    record = {"data_digests": digests, "weights": weights, "environment": environment()}
    run_id = _start_run(project, key, folder, record, num_shards=len(shards), tags=tags)
    stored = {"key": key, "mlflow_run_id": run_id, "shards": shards, "copies": copies, **record}
    write_text(folder / run_folder.RUN_NAME, json.dumps(stored, indent=1))
    project.root.note_made(f"{MODELS}/{key}/{run_folder.RUN_NAME}")
    return TrainingRun(key, folder, run_id)


def _begun_record(folder: Path) -> dict[str, Any] | None:
    """The record of a training that has a checkpoint or a result; None for another training."""
    has_result = (folder / run_folder.RESULT_NAME).is_file()
    if has_result or run_folder.list_checkpoints(folder / run_folder.CHECKPOINTS):
        return run_folder.read_record(folder)
    return None


def _require_same_training(
    config: Config,
    folder: Path,
    key: str,
    begun: Mapping[str, Any],
    digests: Mapping[str, str],
) -> None:
    """Raise DataError if a training would go on with other settings or data."""
    before = load_config(folder / run_folder.CONFIG_NAME).training_identity()
    require_settings(
        {**before, "data": begun["data_digests"]},
        {**config.training_identity(), "data": digests},
        what=f"training: {key} has other settings or data",
        hint="Use those again, or give another --run",
    )


def _start_run(
    project: Project,
    key: str,
    folder: Path,
    record: Mapping[str, Any],
    *,
    num_shards: int,
    tags: Mapping[str, str],
) -> str:
    """Start the MLflow run of a training, with settings, tags and lineage; returns its id."""
    config = project.config
    tracker = tracker_of(project)
    skipped = ("sources", "data_root", "tracking", "watch")
    params = {name: value for name, value in config.stored().items() if name not in skipped}
    run_id = tracker.start(key, name=f"{config.name}-{key}", params=params, tags=tags)
    run_tags = {"git.revision": git_revision()}
    for part, identity in record["weights"].items():
        run_tags[f"{part}.weights"] = identity["source"]
    run_tags["data.num_shards"] = str(num_shards)
    run_tags["data.digest"] = digest_of(record["data_digests"])
    tracker.tag(run_id, run_tags)
    tracker.client.log_artifact(run_id, str(folder / run_folder.CONFIG_NAME), "config")
    tracker.client.log_text(run_id, json.dumps(record, indent=1), LINEAGE_FILE)
    return run_id


def train_model(project: Project, *, run: str, progress: Progress = no_progress) -> dict[str, Any]:
    """Train in child processes; Dagster's asset starts the same command through Pipes. run: the
    training's key. Returns the trainer's result, and where it is."""
    training = prepare_training(project, run, tags={})
    run_training(project, training)
    result = finish_training(project, training)
    return result | {
        "run": training.key,
        "mlflow_run_id": training.mlflow_run_id,
        "folder": str(training.folder),
    }


def training_command(project: Project, run: TrainingRun) -> list[str]:
    """The command that runs `hapvr.trainer`, by torchrun for several processes; on Linux it dies
    with the process that started it. torchrun would be one more process that imports torch, so a
    single trainer runs without it."""
    num_processes = project.config.train.num_processes
    command = [sys.executable]
    if num_processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command.append(f"--nproc-per-node={num_processes}")

    command += ["-m", "hapvr.trainer"]
    command += ["--run-folder", str(run.folder)]
    command += ["--project-folder", str(project.folder)]
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", *command] if setpriv else command


def training_environment(project: Project) -> dict[str, str]:
    """Environment variables of the trainer, in addition to the caller's."""
    threads = max(1, (os.cpu_count() or 1) // project.config.train.num_processes)
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "PYTHONPATH": os.pathsep.join(sys.path),
        # Metrics are delivered together and tried once, in less time than passes between two
        # deliveries: so if a server hangs, nothing piles up that the trainer would have to wait
        # for. The end of a training delivers the rest.
        "MLFLOW_ASYNC_LOGGING_BUFFERING_SECONDS": "10",
        "MLFLOW_ASYNC_LOGGING_THREADPOOL_SIZE": "1",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    }


def run_training(project: Project, run: TrainingRun) -> None:
    """Train in child processes, whose output goes to this terminal. Raises DataError if the
    training fails."""
    process = subprocess.Popen(
        training_command(project, run),
        env=os.environ | training_environment(project),
        process_group=0,
    )
    try:
        code = process.wait()
    except BaseException:
        # interrupted: let it write a checkpoint; in our group, Ctrl-C would end it first
        process.terminate()
        process.wait()
        raise

    if code:
        raise DataError(fail_training(project, run))


def fail_training(project: Project, run: TrainingRun) -> str:
    """Close the MLflow run of a training that failed; returns what the trainer reported, and what
    to do."""
    file = run.folder / run_folder.FAILURE_NAME
    failure = read_text(file) if file.is_file() else ""
    failure = failure or "training: the process died; see its output"
    with suppress(OSError):  # the folder may be gone, or the disk full
        file.write_text(failure, encoding="utf-8")
    try:
        tracker_of(project).client.set_terminated(run.mlflow_run_id, status="FAILED")
    except Exception as error:  # of MLflow, too: the caller is told why the training failed
        warnings.warn(f"the MLflow run {run.mlflow_run_id} stays open: {error}")

    return f"{failure} (run folder: {run.folder}; the same run resumes from its last checkpoint)"


def finish_training(
    project: Project, run: TrainingRun, *, make_current: bool = True
) -> dict[str, Any]:
    """Complete and end the MLflow run, and make this the current model; returns the trainer's
    result. Raises DataError if the training is not complete."""
    result = training_result(run)
    for file in (run_folder.RESULT_NAME, f"{run_folder.NETWORK}/{DESCRIPTION_FILE}"):
        project.root.note_made(f"{MODELS}/{run.key}/{file}")

    run_id = run.mlflow_run_id
    tracker = tracker_of(project)
    complete_metrics(tracker.client, run_id, run_folder.read_history(run.folder))
    for name in (run_folder.RUN_NAME, run_folder.HISTORY_NAME):
        tracker.client.log_artifact(run_id, str(run.folder / name), "training")
    tracker.client.log_artifacts(run_id, str(run.network_folder), NETWORK_ARTIFACT)
    numbers = {
        f"training/{name}": value
        for name, value in result.items()
        if isinstance(value, int | float)
    }
    tracker.metrics(run_id, numbers)
    tracker.client.set_terminated(run_id)
    if make_current:
        project.root.write_json(CURRENT_NAME, {"key": run.key})
    return result


def training_result(run: TrainingRun) -> dict[str, Any]:
    """The trainer's result. Raises DamagedError if the training is not complete."""
    hint = f"run the training {run.key} again, which resumes from its last checkpoint"
    return asdict(
        read_json_as(run.folder / run_folder.RESULT_NAME, run_folder.TrainingResult, hint=hint)
    )


def trained_run(project: Project, key: str = "") -> TrainingRun:
    """The run of this key if it has trained a model, else the one whose training ended last. So a
    chain evaluates and registers the model that it trained, even if another training has ended
    meanwhile. Raises DataError if there is none yet."""
    root = project.root
    if not (RUN_KEY.fullmatch(key) and root.exists(f"{MODELS}/{key}/{run_folder.RESULT_NAME}")):
        if not root.exists(CURRENT_NAME):
            raise DataError(
                "training: no model yet; materialise similarity_model, or run `hapvr train`"
            )

        key = current_key(root)

    folder = root.local_path(f"{MODELS}/{key}")
    return TrainingRun(key, folder, run_folder.read_record(folder)["mlflow_run_id"])


def require_trained_on(run: TrainingRun, settings: Mapping[str, Any], *, what: str) -> None:
    """Raise DataError unless the run was trained on features of this backbone (weights and
    precision) and of this whitening, if one is given. what: for the message."""
    record = run_folder.read_record(run.folder)
    trained = {
        "backbone": record["weights"]["backbone"],
        "whitening": record["data_digests"]["whitening"],
    }
    require_settings(
        settings,
        {part: trained[part] for part in settings},
        what=f"training: model {run.key} was trained on other features than {what} with",
        hint="Restore those settings and features, or train again",
    )


def remove_old_trainings(project: Project) -> list[str]:
    """Remove trainings that ended `retention.run_days` ago, with folder, MLflow run and artifacts;
    returns their keys. Those that made a registered version stay, whatever its alias, and so do the
    current model and that of the index. On a server, runs are only marked as deleted, and `mlflow
    gc` frees their space there. Raises DataError if no registry answers."""
    root = project.root
    days = project.config.retention.run_days
    if days is None or not root.list_folders(MODELS):
        return []
    used = set()
    if root.exists(CURRENT_NAME):
        used.add(current_key(root))
    serving = serving_index(root)
    if serving is not None:
        used |= set(Path(serving.model).parts)
    tracker = tracker_of(project)
    ended = tracker.removable(time.time() - days * DAY_S)
    old = {run_id: key for run_id, key in ended.items() if key not in used}
    for key in old.values():
        if RUN_KEY.fullmatch(key) and not root.local_path(f"{MODELS}/{key}").is_symlink():
            root.delete_folder(f"{MODELS}/{key}")

    tracker.remove(list(old))
    return list(old.values())
