"""Step 8: one training run: its folder, its MLflow run, and the command that does it (asset
`similarity_model`)."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hapvr.config_file import dump_config, load_config
from hapvr.data import features, frames
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import name_digest, training_shard_keys
from hapvr.data.shards import STATUS_OK
from hapvr.data.stamped import read_rows
from hapvr.errors import ConfigError, DamagedError, DataError
from hapvr.files import digest_of, read_json_as, read_text, write_text
from hapvr.networks.whitening import load_whitening
from hapvr.progress import Progress, no_progress
from hapvr.provenance import environment, git_revision, require_settings
from hapvr.registry.runs import Tracker, complete_metrics
from hapvr.registry.versions import LINEAGE_FILE
from hapvr.search.collection import serving_index
from hapvr.search.duplicates import GROUP_SCHEMA, GROUPS_PLACE
from hapvr.steps.benchmark_features import benchmark_shards, check_evaluation
from hapvr.steps.project import Project
from hapvr.train import run_folder
from hapvr.train.pair_labels import PairLabels, read_pair_labels, video_length_s
from hapvr.train.sources import SOURCES

MODELS = "models"
CURRENT_NAME = f"{MODELS}/current.json"
NETWORK_ARTIFACT = "network"
"""Of an MLflow run: the trained network, as `hapvr.model.checkpoint.load_network` reads it."""
TRAINED_WITH = ("backbone", "teacher", "whitening", "views", "pseudo_labels", "train")
"""Sections of the configuration that determine a trained model."""
DAY_S = 86_400.0
RUN_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}")


@dataclass(frozen=True)
class TrainingRun:
    """key: names the run's folder under `models/`; a retry with the same key resumes from its
    checkpoint and MLflow run."""

    key: str
    folder: Path
    mlflow_run_id: str

    @property
    def network_folder(self) -> Path:
        return self.folder / "network"


def tracker_of(project: Project) -> Tracker:
    """The MLflow experiment of a project."""
    return Tracker(project.tracking_uri, project.config.tracking.registered_model)


def stages_read(project: Project) -> tuple[str, ...]:
    """The stages whose shards `train.source` reads."""
    config = project.config
    return SOURCES[config.train.source].reads(config)


def training_shards(project: Project) -> list[str]:
    """Shards of the training split that have what `train.source` reads, sorted. Raises DataError if
    there are none."""
    keys = training_shard_keys(project.root)
    stages = stages_read(project)
    ready = [key for key in keys if _is_finished(project, key, *stages)]
    if not ready:
        raise DataError(
            f"training: none of the {len(keys)} training shards has {' and '.join(stages)}; "
            "materialise them first, from a "
            "source whose split is train"
        )
    return ready


def _is_finished(project: Project, key: str, *stages: str) -> bool:
    return all(project.shard(stage, key).provenance() is not None for stage in stages)


def prepare_training(project: Project, key: str, *, tags: Mapping[str, str]) -> TrainingRun:
    """Make or find the run's folder and MLflow run. Raises DataError for a bad key or missing
    inputs, and as `check_evaluation` does, before there is any run."""
    if not RUN_KEY.fullmatch(key):
        raise DataError(
            f"training: run key {key!r} may hold letters, digits, - and _ only, at most 80 of them"
        )
    check_evaluation(project)
    config, folder = project.config, project.root.local_path(f"{MODELS}/{key}")
    begun = (folder / run_folder.RESULT_NAME).is_file() or run_folder.list_checkpoints(
        folder / run_folder.CHECKPOINTS
    )
    # one that is repeated goes on with its shards: its record says what the network has seen
    shards = run_folder.read_record(folder)["shards"] if begun else training_shards(project)
    labels = pair_labels(project, folder, shards, begun=bool(begun))
    digests = data_digests(project, shards) | labels_digest(labels)
    if begun:
        before = load_config(folder / run_folder.CONFIG_NAME).training_identity()
        before |= {"data": run_folder.read_record(folder)["data_digests"]}
        wanted, hint = (
            config.training_identity() | {"data": digests},
            "Use those again, or give another --run",
        )
        require_settings(
            before, wanted, what=f"training: {key} has other settings or data", hint=hint
        )
    (folder / run_folder.FAILURE_NAME).unlink(missing_ok=True)
    write_text(folder / run_folder.CONFIG_NAME, dump_config(config))
    if labels is not None:
        labels.write(folder)
    # identity and precision of the networks that made the data, as the data itself says, or as an
    # online training loads them
    weights = SOURCES[config.train.source].frozen_networks(project.root, shards, config)
    tracker = tracker_of(project)
    record = {"data_digests": digests, "weights": weights, "environment": environment()}
    copies = run_folder.read_record(folder)["copies"] if begun else copies_of(project)
    left_out = ("sources", "data_root", "tracking", "watch")
    params = {name: value for name, value in config.stored().items() if name not in left_out}
    run_id = tracker.start(key, name=f"{config.name}-{key}", params=params, tags=tags)
    sources = {f"{part}.weights": identity["source"] for part, identity in weights.items()}
    data = {"data.num_shards": str(len(shards)), "data.digest": digest_of(digests)}
    tracker.tag(run_id, {"git.revision": git_revision(), **sources, **data})
    tracker.client.log_artifact(run_id, str(folder / run_folder.CONFIG_NAME), "config")
    tracker.client.log_text(run_id, json.dumps(record, indent=1), LINEAGE_FILE)
    stored = {"key": key, "mlflow_run_id": run_id, "shards": shards, "copies": copies, **record}
    write_text(folder / run_folder.RUN_NAME, json.dumps(stored, indent=1))
    return TrainingRun(key, folder, run_id)


def train_model(project: Project, *, run: str, progress: Progress = no_progress) -> dict[str, Any]:
    """Train in processes of this one; Dagster's asset starts the same command through Pipes. run:
    the training's key. Returns the trainer's result, and where it is."""
    training = prepare_training(project, run, tags={})
    run_training(project, training)
    result = finish_training(project, training)
    return result | {
        "run": training.key,
        "mlflow_run_id": training.mlflow_run_id,
        "folder": str(training.folder),
    }


def training_command(project: Project, run: TrainingRun) -> list[str]:
    """`hapvr.trainer`, by torchrun if it is several processes; on Linux it dies with the process
    that started it. torchrun would be one more process that imports torch, so a single trainer runs
    without it."""
    num_processes, command = project.config.train.num_processes, [sys.executable]
    if num_processes > 1:
        command += [
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={num_processes}",
        ]
    command += [
        "-m",
        "hapvr.trainer",
        "--run-folder",
        str(run.folder),
        "--project-folder",
        str(project.folder),
    ]
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", *command] if setpriv else command


def training_environment(project: Project) -> dict[str, str]:
    """Environment variables of the trainer, in addition to the caller's."""
    threads = max(1, (os.cpu_count() or 1) // project.config.train.num_processes)
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "PYTHONPATH": os.pathsep.join(sys.path),
        # What is there is delivered together and tried once, in less time than comes between: with
        # a server that hangs, nothing piles up that the trainer would have to wait for. The end of
        # a training delivers the rest.
        "MLFLOW_ASYNC_LOGGING_BUFFERING_SECONDS": "10",
        "MLFLOW_ASYNC_LOGGING_THREADPOOL_SIZE": "1",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    }


def run_training(project: Project, run: TrainingRun) -> None:
    """Train in processes of our own, whose output goes to this terminal. Raises DataError if it
    fails."""
    process = subprocess.Popen(
        training_command(project, run),
        env=os.environ | training_environment(project),
        process_group=0,
    )
    try:
        code = process.wait()
    except (
        BaseException
    ):  # interrupted: let it write a checkpoint; in our group, Ctrl-C would end it first
        process.terminate()
        process.wait()
        raise
    if code:
        raise DataError(fail_training(project, run))


def fail_training(project: Project, run: TrainingRun) -> str:
    """Close the MLflow run of a training that did not end well; returns what the trainer said, and
    what to do."""
    failure, died = (
        run.folder / run_folder.FAILURE_NAME,
        "training: the process died; see its output",
    )
    said = (failure.is_file() and read_text(failure)) or died
    with suppress(OSError):  # the folder may be gone, or the disk full
        failure.write_text(said, encoding="utf-8")
    try:
        tracker_of(project).client.set_terminated(run.mlflow_run_id, status="FAILED")
    except Exception as error:  # of MLflow, too: what is told is why the training failed
        warnings.warn(f"the MLflow run {run.mlflow_run_id} stays open: {error}")
    return f"{said} (run folder: {run.folder}; the same run resumes from its last checkpoint)"


def finish_training(
    project: Project, run: TrainingRun, *, make_current: bool = True
) -> dict[str, Any]:
    """End the MLflow run with all it lacks, and make it the current model; returns the trainer's
    result. Raises DataError if it is not complete."""
    result, run_id, tracker = training_result(run), run.mlflow_run_id, tracker_of(project)
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
    """What the trainer said at its end. Raises DamagedError if the training is not complete."""
    hint = f"run the training {run.key} again, which resumes from its last checkpoint"
    return asdict(
        read_json_as(run.folder / run_folder.RESULT_NAME, run_folder.TrainingResult, hint=hint)
    )


def current_key(root: DataRoot) -> str:
    """The key of the run whose training ended last. Raises DamagedError if CURRENT_NAME names a run
    that does not exist."""
    key, models = str(root.read_json(CURRENT_NAME).get("key")), root.local_path(MODELS)
    if not RUN_KEY.fullmatch(key) or not (models / key).is_dir():
        raise DamagedError(
            f"{root.local_path(CURRENT_NAME)} names the run {key!r:.120}, which is not "
            "there; train again, or write the key "
            f"of a run below {models} into it"
        )
    return key


def trained_run(project: Project, key: str = "") -> TrainingRun:
    """The run of this key if it has trained a model, else the one whose training ended last. So a
    chain evaluates and registers what it trained, also where another training has ended meanwhile.
    Raises DataError if there is none yet."""
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
    precision) and, where it is given, this whitening. what: for the message."""
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


def pair_labels(
    project: Project, folder: Path, shards: Sequence[str], *, begun: bool
) -> PairLabels | None:
    """The labelled pairs that `train.source` reads: those of the configuration, or those that a
    training began with. Raises DataError for pairs that do not fit the videos."""
    if project.config.train.source != "labelled_pairs":
        return None
    files = [features.FeatureFile(project.shard(features.STAGE, key)) for key in shards]
    file_of = {video_id: file for file in files for video_id in file.video_ids}
    if begun:
        return PairLabels.read(folder, file_of)
    return read_pair_labels(
        project.config.train.pairs,
        resolve=project.path,
        video_ids=file_of.keys(),
        length_s=lambda video_id: video_length_s(file_of[video_id].times(video_id)),
    )


def labels_digest(labels: PairLabels | None) -> dict[str, str]:
    """The part of `data_digests` that labelled pairs are."""
    return {} if labels is None else {"labelled_pairs": labels.digest}


def copies_of(project: Project) -> dict[str, str]:
    """`name_digest` of a video -> its group of copies, by which `train.look_alikes` chooses: a
    training keeps those it began with."""
    groups = read_rows(project.root, GROUPS_PLACE, GROUP_SCHEMA, damaged=True).select(
        ["video_id", "group"]
    )
    used = groups.to_pylist() if project.config.train.look_alikes else []
    return {name_digest(row["video_id"]): row["group"] for row in used}


def data_digests(project: Project, shards: list[str]) -> dict[str, str]:
    """Digest of everything that training reads: whitening, and by shard views and embeddings, or
    frames."""
    digests = {"whitening": load_whitening(project.root).sha256}
    for stage in stages_read(project):
        for key in shards:
            made = project.shard(stage, key)
            digests[f"{stage}/{key}"] = (
                frames.frames_digest(made) if stage == frames.STAGE else made.read().data_sha256
            )
    return digests


@dataclass(frozen=True)
class PendingData:
    """Training data that the current model has not seen. shards: shards with features and with what
    the training reads. num_videos: usable videos in them. is_empty: whether a training would give
    the current model again, as there is one, of the same data and settings. awaited: shards of the
    benchmarks that have no features yet; without them a training would fail."""

    shards: tuple[str, ...]
    num_videos: int
    is_empty: bool
    awaited: tuple[str, ...]


def pending_data(project: Project) -> PendingData:
    """The training data of the project that the current model has not seen."""
    config, current = project.config, False
    stages = (features.STAGE, *stages_read(project))
    new = [key for key in training_shard_keys(project.root) if _is_finished(project, key, *stages)]
    if project.root.exists(CURRENT_NAME):
        try:
            folder = trained_run(project).folder
            record, before = (
                run_folder.read_record(folder),
                load_config(folder / run_folder.CONFIG_NAME),
            )
            new = [key for key in new if key not in record["shards"]]
            same = all(
                getattr(before, section) == getattr(config, section) for section in TRAINED_WITH
            )
            same &= before.sampling.identity_fields() == config.sampling.identity_fields()
            seen = [
                key for key in record["shards"] if _is_finished(project, key, *stages_read(project))
            ]
            labels = pair_labels(project, folder, seen, begun=False)
            digests = data_digests(project, seen) | labels_digest(labels)
            current = same and digests.items() <= record["data_digests"].items()
        except (DataError, ConfigError) as error:
            warnings.warn(f"{error}. It counts as no model")
    num_videos = sum(
        int((project.shard(features.STAGE, key).index()["status"] == STATUS_OK).sum())
        for key in new
    )
    names = filter(None, (*config.evaluation.benchmarks, config.evaluation.validation))
    read = sorted({key for name in names for key in benchmark_shards(project, name)})
    awaited = tuple(key for key in read if not _is_finished(project, key, features.STAGE))
    return PendingData(tuple(new), num_videos, current and not new, awaited)


def remove_old_trainings(project: Project) -> list[str]:
    """Remove trainings that ended `retention.run_days` ago, with folder, MLflow run and artifacts;
    returns their keys. Those that made a registered version stay, whatever its alias, and so do the
    current model and that of the index. On a server runs are marked as deleted, and `mlflow gc`
    there frees their space. Raises DataError where no registry answers."""
    days, root = project.config.retention.run_days, project.root
    if days is None or not root.list_folders(MODELS):
        return []
    tracker, serving = tracker_of(project), serving_index(root)
    used = {
        current_key(root) if root.exists(CURRENT_NAME) else "",
        *Path(serving.model if serving else "").parts,
    }
    old = {
        run_id: key
        for run_id, key in tracker.removable(time.time() - days * DAY_S).items()
        if key not in used
    }
    for key in filter(RUN_KEY.fullmatch, old.values()):
        if not root.local_path(f"{MODELS}/{key}").is_symlink():
            root.delete_folder(f"{MODELS}/{key}")
    tracker.remove(list(old))
    return list(old.values())
