"""Each family goes through the whole chain: trained, evaluated, registered, scored with, searched
with."""

import pytest

from hapvr.chain import CHAIN
from hapvr.model.checkpoint import read_description
from hapvr.scorer.bundle import load_bundle
from hapvr.steps.evaluation import TRAINED
from hapvr.steps.project import Project
from hapvr.steps.search_index import update_index
from hapvr.steps.search_model import search_model
from hapvr.steps.searcher import Searcher
from hapvr.steps.training import finish_training, prepare_training
from tests.conftest import short_edits
from tests.registry.empty_store import new_store
from tests.train.runs import run as train


@pytest.mark.slow
def test_families_go_through_the_chain(pooled_project: Project) -> None:
    """A pair of files has a similarity, the same file one of nearly 1, and a file of the collection
    finds itself."""
    new_store(pooled_project.folder / "data" / "mlflow")
    clips = pooled_project.path(pooled_project.config.sources[0].path)
    first = clips / "clip 00.mp4"
    second = clips / "clip 01.mp4"
    for family in ("tca", "vvs"):
        overrides = {"train.network.family": family}
        project = Project.open(
            pooled_project.folder / "pooled.yaml", folder=pooled_project.folder, overrides=overrides
        )
        run = prepare_training(project, f"family-{family}", tags={})
        train(project, run.folder)
        assert finish_training(project, run)["steps"] == project.config.train.steps
        for results, _ in CHAIN["benchmark_scores"].run(project).values():
            assert all(0 <= value <= 1 for value in results[TRAINED].metrics.values())
        with short_edits():
            registered = CHAIN["registered_model"].run(project)
        assert registered.decision.champion == "1"  # the untrained baseline
        assert read_description(registered.bundle / "network").settings.family == family
        (pair_score, itself) = load_bundle(registered.bundle).score_pairs(
            [(first, second), (first, first)], segments=True
        )
        assert pair_score.error == itself.error == ""
        assert itself.similarity == pytest.approx(1, abs=1e-3)
        assert -1 <= pair_score.similarity < itself.similarity
        assert itself.segments
        update_index(project, search_model(project, str(registered.bundle)))
        answer = Searcher.open(project).search(first)
        assert answer.error == ""
        assert answer.matches[0].reference.endswith("clip 00.mp4")
