"""VVS through the whole chain: trained by one line, evaluated, registered, scored with, searched with."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hapvr.config_file import load_config
from hapvr.model.vvs.network import VvsNetwork
from hapvr.scorer.bundle import load_bundle
from hapvr.stages.evaluation import TRAINED, make_benchmark_scores
from hapvr.stages.project import Project
from hapvr.stages.registration import make_registered_model
from hapvr.stages.search_index import update_index
from hapvr.stages.search_model import search_model
from hapvr.stages.searcher import Searcher
from hapvr.stages.training import finish_training, prepare_training, run_training


@pytest.mark.slow
def test_vvs_goes_through_the_chain(pooled_project: Project, tmp_path: Path) -> None:
    """A pair of files has a similarity, the same file one of 1, and a file of the collection finds itself."""
    source = pooled_project.root.local
    assert source is not None
    shutil.copytree(source, tmp_path / "data", ignore=shutil.ignore_patterns("mlflow", "models", "search"))
    overrides = {"train.network.family": "vvs", "data_root": str(tmp_path / "data")}
    config = load_config(pooled_project.folder / "pooled.yaml", overrides=overrides)
    project = Project(config, type(pooled_project.root)(str(tmp_path / "data")), tmp_path)
    run = prepare_training(project, "vvs", tags={})
    run_training(project, run)
    assert finish_training(project, run)["steps"] == config.train.steps
    for name in config.evaluation.benchmarks:
        scores = make_benchmark_scores(project, run, name)
        assert 0 <= scores.target_means[TRAINED] <= 1
        assert "frame-similarity-most-similar" in scores.figures
    registered = make_registered_model(project, run, tags={})
    assert "| family | vvs |" in registered.card
    scorer = load_bundle(registered.bundle)
    assert isinstance(scorer.network, VvsNetwork)
    clips = project.path(config.sources[0].path)
    first, second = clips / "clip 00.mp4", clips / "clip 01.mp4"
    assert scorer.features(first).shape[1:] == (9, 32)
    (other, itself) = scorer.score_pairs([(first, second), (first, first)], segments=True)
    assert other.error == itself.error == ""
    assert other.similarity is not None
    assert itself.similarity == pytest.approx(1, abs=1e-3)
    assert -1 <= other.similarity < itself.similarity
    assert itself.segments
    update_index(project, search_model(project, str(registered.bundle)))
    searcher = Searcher.open(project)
    shown = {video_id for video_id in searcher.video_ids() if video_id.endswith("clip 00.mp4")}
    assert shown
    found = searcher.search(first)
    assert found.error == ""
    assert {match.reference for match in found.matches[:1]} == shown
