"""A family chosen by one line goes through the whole chain: trained, evaluated, registered, scored with, searched with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hapvr.chain import CHAIN
from hapvr.config_file import load_config
from hapvr.data.filesystem import DataRoot
from hapvr.model.description import read_description
from hapvr.scorer.bundle import load_bundle
from hapvr.steps.evaluation import TRAINED
from hapvr.steps.project import Project
from hapvr.steps.search_index import update_index
from hapvr.steps.search_model import search_model
from hapvr.steps.searcher import Searcher
from hapvr.steps.training import finish_training, prepare_training, run_training
from tests.registry.empty_store import new_store


def project_of(pooled_project: Project, folder: Path, family: str) -> Project:
    """The small project with all its data in a folder of its own, and one more line in its configuration."""
    source = pooled_project.root.local
    assert source is not None
    shutil.copytree(source, folder / "data", ignore=shutil.ignore_patterns("mlflow", "models", "search"))
    new_store(folder / "data" / "mlflow")
    overrides = {"train.network.family": family, "data_root": str(folder / "data")}
    config = load_config(pooled_project.folder / "pooled.yaml", overrides=overrides)
    return Project(config, DataRoot(str(folder / "data")), folder)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["tca", "vvs"])
def test_family_goes_through_the_chain(pooled_project: Project, tmp_path: Path, family: str) -> None:
    """A pair of files has a similarity, the same file one of nearly 1, and a file of the collection finds itself."""
    project = project_of(pooled_project, tmp_path, family)
    run = prepare_training(project, f"family-{family}", tags={})
    run_training(project, run)
    assert finish_training(project, run)["steps"] == project.config.train.steps
    for scores in CHAIN["benchmark_scores"].run(project).values():
        assert 0 <= scores.target_means[TRAINED] <= 1
    registered = CHAIN["registered_model"].run(project)
    assert registered.decision.champion == "1"  # the untrained baseline
    assert read_description(registered.bundle / "network").settings.family == family
    scorer = load_bundle(registered.bundle)
    clips = project.path(project.config.sources[0].path)
    first, second = clips / "clip 00.mp4", clips / "clip 01.mp4"
    (other, itself) = scorer.score_pairs([(first, second), (first, first)], segments=True)
    assert other.error == itself.error == ""
    assert other.similarity is not None
    assert itself.similarity == pytest.approx(1, abs=1e-3)
    assert -1 <= other.similarity < itself.similarity
    assert itself.segments
    update_index(project, search_model(project, str(registered.bundle)))
    searcher = Searcher.open(project)
    shown = {video_id for video_id in searcher.collection.video_ids() if video_id.endswith("clip 00.mp4")}
    assert shown
    found = searcher.search(first)
    assert found.error == ""
    assert {match.reference for match in found.matches[:1]} == shown
