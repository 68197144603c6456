"""Another precision under existing data: what is made anew, what is refused, and what stays as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from hapvr.data.features import STAGE, FeatureFile, FeatureStore
from hapvr.data.manifest import read_manifest, shard_keys
from hapvr.data.shards import Shard
from hapvr.errors import DataError
from hapvr.model.checkpoint import save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.networks.backbone import load_backbone
from hapvr.networks.whitening import load_whitening
from hapvr.scorer.similarity_model import load_similarity_model
from hapvr.scorer.torch_bundle import BundleParts, write_bundle
from hapvr.seeding import torch_rng
from hapvr.steps.evaluation import make_benchmark_scores
from hapvr.steps.features import make_features
from hapvr.steps.project import Project
from hapvr.steps.registration import make_registered_model
from hapvr.steps.training import TrainingRun, prepare_training
from tests.conftest import write_settings


@pytest.fixture
def project(small_project: Project, tmp_path: Path) -> Project:
    """The small project's data, made in float32, for a test to change."""
    shutil.copytree(small_project.folder / "data", tmp_path / "data")
    return changed(small_project, tmp_path)


def changed(project: Project, folder: Path, **networks: dict[str, object]) -> Project:
    """The project on the data in `folder`, with other settings of its networks."""
    settings = project.config.model_dump(mode="json") | {"data_root": str(folder / "data")}
    for name, values in networks.items():
        settings[name] |= values
    return Project.open(write_settings(folder / "config.yaml", settings), folder=folder)


def run_of(project: Project) -> TrainingRun:
    """A current model of a network as it is drawn."""
    run = prepare_training(project, "precision", tags={})
    save_network(
        SimilarityNetwork(NetworkSettings(), dims=32, generator=torch_rng("precision")), run.network_folder, metadata={}
    )
    project.root.write_json("models/current.json", {"key": run.key})
    return run


def test_features_of_another_precision_are_close_made_anew_and_never_mixed(project: Project) -> None:
    """Stored as before, half floats; readers refuse shards of both precisions, whichever comes first."""
    half = changed(project, project.folder, backbone={"precision": "bfloat16"})
    whole = {key: Shard(project.root, STAGE, key) for key in shard_keys(project.root)}
    first, second = list(whole)[:2]
    exact = {
        video: FeatureFile(whole[first]).read(video)[0] for video in FeatureStore(project.root, [first]).available()
    }
    assert make_features(half, first).done
    assert not make_features(half, first).done
    assert whole[first].require({}).settings["backbone"]["precision"] == "bfloat16"
    for video, before in exact.items():
        after = FeatureFile(whole[first]).read(video)[0]
        assert after.dtype == before.dtype
        similarity = F.cosine_similarity(torch.from_numpy(before).float(), torch.from_numpy(after).float(), dim=-1)
        assert similarity.min() > 0.99
    for keys in ([first, second], [second, first]):
        with pytest.raises(DataError, match=r"backbone.precision: .*bfloat16.*Materialise it again, or restore"):
            FeatureStore(project.root, keys)


@pytest.mark.slow
def test_a_model_goes_with_its_own_precision_only(project: Project, tmp_path: Path) -> None:
    """Evaluation, registration and bundles refuse another one, and say what to do."""
    run = run_of(project)
    half = changed(project, project.folder, backbone={"precision": "bfloat16"})
    make_benchmark_scores(project, run, "own-test")
    message = (
        r"model precision was trained on features of another backbone .*wanted \(none\), found bfloat16.*train again"
    )
    with pytest.raises(DataError, match=message):
        make_registered_model(half, run, tags={})
    test_shards = read_manifest(half.root).filter(split="test")["shard"].unique().to_list()
    for key in test_shards:
        make_features(half, key)
    with pytest.raises(DataError, match=message):
        make_benchmark_scores(half, run, "own-test")
    features = FeatureStore(half.root, test_shards).settings
    for owner, fits in ((project, False), (half, True)):
        bundle = write_bundle(
            tmp_path / f"bundle {fits}",
            BundleParts(
                network_folder=run.network_folder,
                backbone=load_backbone(owner.config.backbone),
                whitening=load_whitening(half.root),
                sampling=half.config.sampling,
            ),
        )
        model = load_similarity_model(bundle)
        if fits:
            model.require_features(features)
        else:
            with pytest.raises(DataError, match=r"backbone\.precision: .*Extract features with the model's settings"):
                model.require_features(features)
