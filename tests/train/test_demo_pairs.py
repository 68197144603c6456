"""TCA and VVS learn from labelled pairs: on generated copies of the demo, validated on others."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from hapvr.model.checkpoint import load_network
from hapvr.steps.training_data import data_digests, read_labels, training_shards
from hapvr.train.loop import Trainer, TrainingData
from hapvr.train.run_folder import History, read_history
from tests.conftest import MakeOnce
from tests.train.demo_pairs import make_pairs_project, open_pairs_project, validator
from tests.train.runs import cpu

TCA: dict[str, Any] = {
    "pairs": {"path": "labelled_pairs.csv", "negatives_per_pair": 4},
    "network": {"family": "tca", "dropout": 0.1, "feedforward": 128},
    "contrast": {
        "bank_size": 16,
        "batch_negatives": False,
        "bank_order": "before",
        "positive_gradients": True,
    },
    "batch_videos": 4,
    "repeat_short_clips": False,
    "steps": 200,
    "optimizer": {
        "kind": "adam",
        "learning_rate": 1e-3,
        "weight_decay": 0,
        "warmup_steps": 0,
        "floor_rate": 0,
    },
}


VVS: dict[str, Any] = {
    "pairs": {
        "path": "labelled_pairs.csv",
        "negatives_per_pair": 1,
        "negatives": "hard",
        "hard_negatives": 6,
        "min_overlap_s": 3,
        "swap": True,
    },
    "network": {
        "family": "vvs",
        "injection": "scattered",
        "topic": {"temperature": 1.0},
        "saliency": {
            "attention": "video",
            "label_rule": "plain",
            "width": 16,
            "temperature": 0.2,
        },
        "distractor": {"hidden": (64, 16)},
    },
    "batch_videos": 2,
    "steps": 300,
    "optimizer": {
        "kind": "adam",
        "learning_rate": 1e-3,
        "weight_decay": 0,
        "warmup_steps": 0,
        "floor_rate": 1,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "beats_start"),
    [pytest.param(TCA, True, id="tca"), pytest.param(VVS, False, id="vvs")],
)
def test_losses_fall_and_tca_beats_its_untrained_start(
    make_once: MakeOnce, tmp_path: Path, settings: dict[str, Any], beats_start: bool
) -> None:
    """The mean loss of the last tenth is below that of the first.

    TCA finds copies of incidents that no pair shows better than as it started. VVS, whose frames
    start with nearly equal weights, does not in so few steps."""
    pairs_folder = make_once("demo pairs", make_pairs_project)
    project = open_pairs_project(
        pairs_folder,
        config=tmp_path / "config.yaml",
        source="labelled_pairs",
        validate_every_steps=50,
        **settings,
    )
    shards = training_shards(project)
    labels = read_labels(project, shards)
    assert labels is not None
    labels.write(tmp_path)
    validate = validator(project, pairs_folder)
    trainer = Trainer(
        project.config,
        TrainingData(
            root=project.root, shards=shards, digests=data_digests(project, shards), copies={}
        ),
        folder=tmp_path,
        fabric=cpu(),
        validate=validate,
        open_loggers=lambda first_step: [History(tmp_path, first_step=first_step)],
    )
    with torch.no_grad():
        untrained = validate(trainer.network.eval())["mean"]
    trainer.network.train()
    trainer.fit()

    losses = [line["loss/total"] for line in read_history(tmp_path) if "loss/total" in line]
    tenth = len(losses) // 10
    assert fmean(losses[-tenth:]) < 0.9 * fmean(losses[:tenth])
    network, _ = load_network(tmp_path / "network")
    with torch.no_grad():
        trained = validate(network.eval())["mean"]
    assert not beats_start or trained > untrained
