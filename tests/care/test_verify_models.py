"""`hapvr verify` and its repairs, of trainings, scores and bundles."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hapvr.care.repair import repair
from hapvr.steps.evaluation import make_benchmark_scores
from hapvr.steps.project import Project
from hapvr.steps.training import finish_training, prepare_training, trained_run
from tests.care.damage import damage, damaged, kinds_of_files, names
from tests.steps.data_projects import folder_settings, open_project
from tests.steps.search_projects import copied
from tests.train.runs import run as train


@pytest.fixture(scope="module")
def trained(small_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a training that began and one that ended and was evaluated. Who damages it,
    puts back what was there."""
    folder = tmp_path_factory.mktemp("trained")
    project = copied(small_project.folder, folder)
    shutil.rmtree(folder / "data" / "models", ignore_errors=True)  # those of other tests
    prepare_training(project, "begun", tags={})
    run = prepare_training(project, "ended", tags={})
    train(project, run.folder)
    finish_training(project, run)
    make_benchmark_scores(project, run, "own-test")
    return project


OF_SCORES = ("scores.json", "similarities-trained.parquet", "similarities-untrained.parquet")
OF_TRAININGS = (
    "current.json",
    "run.json",
    "result.json",
    "network.json",
    "network.safetensors",
    "step-00000008.pt",
)


@pytest.mark.slow
def test_each_kind_of_file_of_a_training_is_damaged_once(trained: Project) -> None:
    kinds = {path.name for path in kinds_of_files(trained.root.local, "models")}
    assert kinds == {*OF_SCORES, *OF_TRAININGS}


@pytest.mark.slow
def test_trainings_and_scores_are_no_damage(trained: Project) -> None:
    assert damaged(trained) == []


def file_of(project: Project, name: str) -> Path:
    """A file of a training or of its scores."""
    kinds = kinds_of_files(project.root.local, "models")
    return next(path for path in kinds if path.name == name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_TRAININGS)
def test_a_damaged_file_of_a_training_is_named_and_not_repaired(
    trained: Project, name: str
) -> None:
    file = file_of(trained, name)
    whole = file.read_bytes()
    damage(file)
    checks = damaged(trained)
    states = [check.state for check in repair(trained, checks)]
    file.write_bytes(whole)
    assert names(checks, file)
    assert states == ["damaged"]


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_SCORES)
def test_damaged_scores_are_named_and_measured_again(trained: Project, name: str) -> None:
    file = file_of(trained, name)
    damage(file)
    checks = damaged(trained)
    assert names(checks, file)
    assert [check.state for check in repair(trained, checks)] == ["repaired"]
    assert damaged(trained) == []


@pytest.mark.slow
def test_a_training_whose_files_were_put_back_can_be_finished(trained: Project) -> None:
    run = trained_run(trained)
    assert finish_training(trained, run, make_current=False)["steps"] > 0


@pytest.fixture(scope="module")
def untrained(onnx_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with the bundle and the network of an untrained model, which lie beside those that
    are trained."""
    folder = tmp_path_factory.mktemp("untrained")
    project = open_project(folder, folder_settings(folder / "in", folder / "data"))
    place = folder / "data" / "models" / "untrained-0"
    bundle = shutil.copytree(onnx_bundle, place / "bundle")
    shutil.copytree(bundle / "network", place / "network")
    return project


def emptied(path: Path) -> None:
    path.write_bytes(b"")


OF_A_BUNDLE = ("backbone.safetensors", "scorer.json", "onnx/embed.onnx")
OF_A_NETWORK = ("network.safetensors", "network.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "harm"),
    [
        *((f"bundle/{name}", harm) for name in OF_A_BUNDLE for harm in (damage, Path.unlink)),
        *((f"network/{name}", harm) for name in OF_A_NETWORK for harm in (emptied, Path.unlink)),
    ],
)
def test_a_bundle_of_an_untrained_model_is_checked(
    untrained: Project, file: str, harm: Callable[[Path], object]
) -> None:
    folder = untrained.root.local / "models" / "untrained-0"
    whole = (folder / file).read_bytes()
    harm(folder / file)
    (check,) = damaged(untrained)
    (folder / file).write_bytes(whole)
    assert str(folder) in check.message
    assert damaged(untrained) == []
