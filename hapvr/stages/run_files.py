"""Whether what trainings and evaluations wrote below a data root still is what they wrote."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hapvr.errors import DamagedError, DataError
from hapvr.files import read_json_as
from hapvr.model.description import WEIGHTS_FILE, read_description, weights_sha256
from hapvr.stages.evaluation import StoredScores, make_benchmark_scores
from hapvr.stages.project import Project
from hapvr.stages.training import CURRENT_NAME, MODELS, current_key, trained_run
from hapvr.storage.filesystem import DataRoot
from hapvr.tables import TABLE_ERRORS, read_frame
from hapvr.train.labelled_pairs import read_labelled_pairs
from hapvr.train.report import RESULT_NAME, TrainingResult
from hapvr.train.run_folder import CHECKPOINTS, NETWORK, RUN_NAME, list_checkpoints, read_checkpoint, read_record

SCORES = "benchmark_scores"
RUN_STAGES = (MODELS, SCORES)
REMEDY = "train again with another run key, or copy the file from the run in MLflow"


def run_places(root: DataRoot) -> list[tuple[str, str]]:
    """(stage, key) of the file that names the latest model (key ""), of each training, and of its scores: KEY/BENCHMARK."""
    keys = root.list_folders(MODELS)
    places = [(MODELS, "")] if root.exists(CURRENT_NAME) else []
    places += [(MODELS, key) for key in keys]
    return places + [
        (SCORES, f"{key}/{name}") for key in keys for name in root.list_folders(f"{MODELS}/{key}/benchmarks")
    ]


def check_run(root: DataRoot, stage: str, key: str) -> None:
    """Read what lies at one of `run_places`; a training may have come to any point. Raises DataError, which names the file."""
    if stage == SCORES:
        run, name = key.split("/")
        _check_scores(root.local_path(f"{MODELS}/{run}/benchmarks/{name}"))
    elif key:
        _check_training(root.local_path(f"{MODELS}/{key}"))
    else:
        current_key(root)


def repair_run(project: Project, stage: str, key: str) -> None:
    """Score a benchmark again; remove checkpoints that cannot be read. Raises DataError for what only a training makes."""
    if stage == SCORES:
        run, name = key.split("/")
        make_benchmark_scores(project, trained_run(project, run), name)
        return
    for path in list_checkpoints(project.root.local_path(f"{MODELS}/{key}") / CHECKPOINTS) if key else ():
        try:
            read_checkpoint(path)
        except DataError:
            path.unlink()  # a training goes on from the one before


def _check_training(folder: Path) -> None:
    if (folder / RUN_NAME).is_file():
        read_record(folder)
    if (folder / RESULT_NAME).is_file():
        ended = read_json_as(folder / RESULT_NAME, TrainingResult, remedy=REMEDY)
        read_description(folder / NETWORK)
        if weights_sha256(folder / NETWORK) != ended.weights_sha256:
            weights = folder / NETWORK / WEIGHTS_FILE
            raise DamagedError(f"{weights} does not hold the weights that the training ended with; {REMEDY}")
    for checkpoint in list_checkpoints(folder / CHECKPOINTS):
        with suppress(FileNotFoundError):  # a training that runs removes old ones
            read_checkpoint(checkpoint)
    read_labelled_pairs(folder)


def _check_scores(folder: Path) -> None:
    remedy = "evaluate the model again"
    if (folder / "scores.json").is_file():
        read_json_as(folder / "scores.json", StoredScores, remedy=remedy)
    for table in sorted(folder.glob("*.parquet")):
        try:
            read_frame(table)
        except TABLE_ERRORS as error:
            raise DamagedError(f"{table} is damaged ({error}); {remedy}") from error
