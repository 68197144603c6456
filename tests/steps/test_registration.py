"""Calibration and model card of a project's own model."""

import json
from pathlib import Path
from typing import Any

import pytest

from hapvr.chain import CHAIN
from hapvr.chain.step import shards_of
from hapvr.config import EvaluationConfig
from hapvr.files import digest_of
from hapvr.model.checkpoint import save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.scorer.bundle_writer import random_weights_warning
from hapvr.scorer.torch_networks import TOLERANCE
from hapvr.seeding import torch_rng
from hapvr.steps.calibration import calibrate
from hapvr.steps.evaluation import make_benchmark_scores, stored_scores
from hapvr.steps.export import export_onnx
from hapvr.steps.model_card import CardFacts, model_card
from hapvr.steps.project import Project
from hapvr.steps.training import TrainingRun, prepare_training
from tests.conftest import small_settings, write_clip, write_settings


@pytest.fixture(scope="module")
def run(small_project: Project) -> TrainingRun:
    """A run whose network is untrained: attention and comparator as they are drawn."""
    run = prepare_training(small_project, "card", tags={})
    network = SimilarityNetwork(NetworkSettings(), dims=32, generator=torch_rng("card"))
    save_network(network, run.network_folder, metadata={})
    small_project.root.write_json("models/current.json", {"key": run.key})
    return run


@pytest.fixture
def any_pairs_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which clips are held out, and so how many pairs there are, goes by their bytes, which differ
    from run to run."""
    monkeypatch.setattr("hapvr.scorer.calibration.MIN_PAIRS", 1)
    monkeypatch.setattr("hapvr.steps.calibration.MIN_PAIRS", 1)


def with_validation(project: Project, name: str | None) -> Project:
    """The project with another validation benchmark, and no test benchmarks."""
    evaluation = EvaluationConfig(benchmarks=(), validation=name)
    return Project(
        project.config.model_copy(update={"evaluation": evaluation}), project.root, project.folder
    )


@pytest.mark.usefixtures("any_pairs_do")
def test_calibration_is_fitted_on_the_validation_pairs(
    small_project: Project, run: TrainingRun
) -> None:
    """Counts are those of the labels; the source names benchmark, labels and features."""
    fitted = calibrate(with_validation(small_project, "own-test"), run)
    assert fitted.num_matches > 0
    assert fitted.num_others > 0
    assert fitted.prior == pytest.approx(
        fitted.num_matches / (fitted.num_matches + fitted.num_others)
    )
    assert fitted.source["benchmark"] == "own-test"
    assert {"ND", "DS"} <= set(fitted.source["labels"])
    assert fitted.source["shards"]
    assert 0 < fitted.frame_threshold < 1


@pytest.mark.usefixtures("any_pairs_do")
def test_card_says_what_the_model_is_and_is_not(small_project: Project, run: TrainingRun) -> None:
    """Data with counts and digest, weights, metrics with intervals against the baseline,
    calibration, warnings, use."""
    make_benchmark_scores(small_project, run, "own-test")
    scores = {"own-test": stored_scores(small_project, run, "own-test")}
    calibrated = calibrate(with_validation(small_project, "own-test"), run)
    card = card_of(small_project, run, scores, calibrated, {"dagster.run_id": "abc"})
    record = json.loads((run.folder / "run.json").read_text())
    result = scores["own-test"]["results"]["trained model"]
    value = result["metrics"]["DSVR"]
    low, high = result["intervals"]["DSVR"]
    for text in (
        digest_of(record["data_digests"]),
        "| own-train | train | ",
        f"{100 * value:.2f} [{100 * low:.2f}, {100 * high:.2f}]",
        f"{calibrated.num_matches} matches (labels ",
        *(
            f"| {row.precision:g} | {row.similarity:.4f} | {row.found:.3f} | {row.recall:.3f} | "
            for row in calibrated.thresholds
            if row.similarity is not None
        ),
        "dagster.run_id: abc",
        run.mlflow_run_id,
    ):
        assert text in card

    assert card.startswith("**Warning: the frozen networks of this model have random weights")
    without = card_of(
        small_project, run, {}, calibrate(with_validation(small_project, None), run), {}
    )
    for text in (
        "None: the configuration names no validation benchmark. The column `probability` is empty",
        "Measured on no benchmark only",
        "The model needs torch, since it has no ONNX files: tracking.onnx is false.",
    ):
        assert text in without


def card_of(project: Project, run: TrainingRun, *given: Any) -> str:
    names = ("scores", "calibration", "tags")
    more = {
        "evidence": "too few searches",
        "onnx": {"reason": "tracking.onnx is false"},
        "warning": random_weights_warning(["random"]),
    }
    return model_card(project, run, CardFacts(**dict(zip(names, given, strict=True)), **more))


@pytest.mark.slow
def test_a_network_on_the_packaged_backbone_is_exported(tmp_path: Path) -> None:
    """Torch checks it, though nothing else of a collection on a processor runs in torch."""
    for number in range(4):
        write_clip(tmp_path / "videos" / f"{number}.mp4", seed=number)
    settings = small_settings(tmp_path / "videos", tmp_path / "data") | {
        "backbone": {
            "architecture": "tf_efficientnet_lite0.in1k",
            "weights": {"source": "packaged"},
            "crop_px": 128,
        },
        "whitening": {"dims": 16, "max_regions": 400},
        "tracking": {"onnx": True},
    }
    project = Project.open(write_settings(tmp_path / "config.yaml", settings), folder=tmp_path)
    for name in ("video_manifest", "videos", "frames", "whitening", "features"):
        for key in shards_of(project, CHAIN[name]):
            CHAIN[name].run(project, key)

    plain = NetworkSettings(comparator=False)
    network = SimilarityNetwork(plain, dims=16, generator=torch_rng("export"))
    save_network(network, tmp_path / "run" / "network", metadata={})
    record = export_onnx(project, tmp_path / "run")
    assert "backbone.onnx" in record["files"]
    assert record["check"]["largest_difference"] <= TOLERANCE
