"""How VVS trains: which clips and frames meet, that it learns, and that it can go on."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from hapvr.config_file import parse_config
from hapvr.errors import ArgumentError, ConfigError, DataError
from hapvr.model.checkpoint import load_network
from hapvr.model.vvs.network import VvsNetwork
from hapvr.model.vvs.settings import InjectionSettings, VvsSettings
from hapvr.steps.project import Project
from hapvr.steps.training import prepare_training, run_training
from hapvr.train.batch import Batch
from hapvr.train.families import build_network
from hapvr.train.report import read_history
from hapvr.train.run_folder import list_checkpoints, read_checkpoint
from hapvr.train.schedule import build_optimizer, build_scheduler
from hapvr.train.suppression import SuppressionTraining, draw_distractors, easy_frames, hardest_negatives
from tests.train.runs import cached_views, run, same_weights, with_train, without_times

SMALL = VvsSettings.model_validate({"distractor": {"hidden": (16, 8)}, "saliency": {"width": 8}})


def test_easy_frames_are_those_of_small_magnitude() -> None:
    """Below an absolute limit, or a part of all frames; the smallest one where there is none."""
    magnitude = torch.tensor([[30.0, 50.0, 39.9, 40.0], [80.0, 20.0, 60.0, 70.0]])
    easy = easy_frames(magnitude, max_magnitude=40, easy_rate=0.09)
    assert easy.tolist() == [[True, False, True, False], [False, True, False, False]]
    assert easy_frames(magnitude, max_magnitude=None, easy_rate=0.3).sum() == 3
    assert easy_frames(magnitude, max_magnitude=5, easy_rate=0.3).nonzero().tolist() == [[1, 1]]
    assert easy_frames(torch.ones(2, 4), max_magnitude=None, easy_rate=0.09).all()


def test_distractors_are_of_other_videos() -> None:
    """They are easy frames of negatives; where negatives have none, of any clip. The draw is a function of its seed."""
    easy = torch.zeros(4, 5, dtype=torch.bool)
    easy[0, 1] = easy[2, 3] = easy[3, 0] = True
    labels = torch.tensor([[1, 1, -1, -1], [-1, -1, 1, 1], [1, 1, 1, 1]], dtype=torch.int8)
    draws = [draw_distractors(easy, labels, parts=(1, "x", number)) for number in range(40)]
    assert [set(row) for row in torch.cat(draws, dim=1).tolist()] == [{13, 15}, {1}, {1, 13, 15}]
    assert torch.equal(draws[2], draw_distractors(easy, labels, parts=(1, "x", 2)))


def test_negatives_share_no_video() -> None:
    """The nearest clip of another video is the negative; an anchor whose batch has none is left out."""
    vectors = F.normalize(torch.tensor([[1.0, 0], [1, 0.1], [1, 0.2], [0, 1]]), dim=-1)
    labels = torch.tensor([[1, 1, -1, -1], [1, 1, 1, 1]], dtype=torch.int8)
    negative, found = hardest_negatives(vectors[:2], vectors, labels)
    assert (int(negative[0]), found.tolist()) == (2, [True, False])


def batch_of(project: Project, settings: VvsSettings = SMALL, number: int = 0) -> tuple[SuppressionTraining, Batch]:
    views = cached_views(project, network=settings)
    network = VvsNetwork(settings, dims=32, extras_dims=views.extras_dims, generator=torch.Generator().manual_seed(1))
    training = SuppressionTraining(network, with_train(project, network=settings).train)
    batch = views[number]
    return training.train(), replace(batch, regions=batch.regions.float())


def test_a_step_gives_all_terms_and_gradients(pooled_project: Project) -> None:
    """Four finite terms, their weighted sum, and gradients for all that the encoder's frames do not share."""
    training, batch = batch_of(pooled_project)
    total, terms, counts, similarity = training(batch, 3)
    assert terms.keys() == {"video", "frame", "saliency", "distractor"}
    weights = {"video": 1, "frame": 1, "saliency": 1, "distractor": 0.5}
    assert float(total.detach()) == pytest.approx(
        sum(weights[name] * float(term) for name, term in terms.items()), rel=1e-5
    )
    assert counts == {"anchors": 4, "anchors_without_negatives": 0}
    assert similarity.shape == (8, 8)
    assert torch.allclose(similarity.diagonal(), torch.ones(8), atol=1e-5)
    total.backward()
    assert all(parameter.grad is not None for parameter in training.network.parameters())


def test_draws_are_functions_of_the_number(pooled_project: Project) -> None:
    """The same batch number gives the same loss, another number another; torch's generator is left alone."""
    training, batch = batch_of(pooled_project)
    before = torch.random.get_rng_state()
    first, second, other = (float(training(batch, number)[0]) for number in (5, 5, 6))
    assert first == second != other
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("changes", "terms"),
    [
        ({"topic_guidance": False}, {"frame", "saliency", "distractor"}),
        ({"temporal_saliency": False}, {"video", "distractor"}),
        ({"distractor_discrimination": False}, {"video", "frame", "saliency"}),
        ({"topic_guidance": False, "temporal_saliency": False}, {"distractor"}),
        ({"objective": {"frame_weight": 0}}, {"video", "saliency", "distractor"}),
    ],
)
def test_ablations_leave_their_terms_out(pooled_project: Project, changes: dict[str, object], terms: set[str]) -> None:
    settings = VvsSettings.model_validate(SMALL.model_dump() | changes)
    training, batch = batch_of(pooled_project, settings)
    total, found, _, _ = training(batch)
    assert found.keys() == terms
    assert math.isfinite(float(total))


def test_no_negative_still_trains_the_distractor_network(pooled_project: Project) -> None:
    """A batch whose clips all show one another has no triplet. All weights have gradients, which several processes wait for."""
    training, batch = batch_of(pooled_project)
    batch = replace(batch, labels=torch.ones_like(batch.labels))
    total, terms, counts, _ = training(batch)
    assert terms.keys() == {"distractor"}
    assert counts["anchors_without_negatives"] == 4
    total.backward()
    assert all(parameter.grad is not None for parameter in training.network.parameters())


def test_resumed_training_ends_as_the_uninterrupted_one(pooled_project: Project, tmp_path: Path) -> None:
    """Weights, running statistics and history are equal bit for bit."""
    config = with_train(pooled_project, network=SMALL)
    run(pooled_project, tmp_path / "whole", config)
    run(pooled_project, tmp_path / "cut", config)
    list_checkpoints(tmp_path / "cut" / "checkpoints")[-1].unlink()
    assert run(pooled_project, tmp_path / "cut", config).first_step == 6
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
    assert without_times(read_history(tmp_path / "whole")) == without_times(read_history(tmp_path / "cut"))
    network, _ = load_network(tmp_path / "whole" / "network")
    assert isinstance(network, VvsNetwork)
    assert network.extras_dims == 960
    assert int(network.state_dict()["saliency.bn1.num_batches_tracked"]) == 8


@pytest.mark.slow
def test_a_step_of_two_processes_is_the_mean_of_their_halves(
    pooled_project: Project, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Loss and weights of two gloo processes are those of their two halves of the batch, one by one; the training says so.

    The running statistics are the first process's. One process with the whole batch has another loss.
    """
    config = with_train(
        pooled_project, network=SMALL, num_processes=2, steps=1, log_every_steps=1, checkpoint_every_steps=1
    )
    project = Project(config, pooled_project.root, pooled_project.folder)
    training = prepare_training(project, "vvs-halves", tags={})
    run_training(project, training)
    views = [cached_views(pooled_project, network=SMALL, rank=rank, world_size=2) for rank in range(2)]
    network = build_network(SMALL, dims=32, seed=config.train.seed, extras_dims=views[0].extras_dims)
    module = SuppressionTraining(network, config.train).train()
    optimizer = build_optimizer(network, config.train.optimizer)
    build_scheduler(optimizer, config.train.optimizer, steps=1)
    totals, statistics = [], {}
    for rank, batch in enumerate(view[0] for view in views):
        total, *_ = module(replace(batch, regions=batch.regions.float()))
        totals.append(total)
        if rank == 0:
            statistics = {name: value.clone() for name, value in network.named_buffers()}
    (sum(totals) / 2).backward()
    optimizer.step()
    mean = sum(float(total.detach()) for total in totals) / 2
    assert read_history(training.folder)[0]["loss/total"] == pytest.approx(mean, rel=1e-5)
    found = read_checkpoint(list_checkpoints(training.folder / "checkpoints")[-1])["network"]
    for name, wanted in (dict(network.named_parameters()) | statistics).items():
        torch.testing.assert_close(found[name], wanted.detach(), rtol=1e-3, atol=2e-5)
    assert "2 processes do not train as one with the same batch: normalisation, negatives" in "".join(
        capfd.readouterr()
    )
    run(pooled_project, tmp_path, with_train(pooled_project, network=SMALL, steps=1, log_every_steps=1))
    assert read_history(tmp_path)[0]["loss/total"] != pytest.approx(mean, rel=1e-3)


@pytest.mark.parametrize(("num_frames", "max_magnitude"), [(1, None), (4, 1e9)])
def test_clips_of_a_frame_and_of_distractors_alone_train(
    pooled_project: Project, num_frames: int, max_magnitude: float | None
) -> None:
    """A clip of one frame is repeated for the comparator; where all frames are easy, inserted ones alone have a label."""
    injection = InjectionSettings(max_magnitude=max_magnitude)
    training, batch = batch_of(pooled_project, SMALL.model_copy(update={"injection": injection}))
    batch = replace(batch, regions=batch.regions[:, :num_frames])
    total, terms, _, _ = training(batch, 1)
    assert terms.keys() == {"video", "frame", "saliency", "distractor"}
    assert bool(total.isfinite())
    total.backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in training.network.parameters())


def test_online_views_train_too(pooled_project: Project, tmp_path: Path) -> None:
    """New views in each step, with their pooled vectors."""
    config = with_train(pooled_project, network=SMALL, source="online", steps=2)
    result = run(pooled_project, tmp_path, config)
    assert result.steps == 2


def test_views_without_pooled_vectors_are_refused(small_project: Project, tmp_path: Path) -> None:
    """The error names the setting; without distractor discrimination the same views train."""
    with pytest.raises(DataError, match=r"features\.pooled: true"):
        run(small_project, tmp_path / "a", with_train(small_project, network=SMALL, steps=2))
    without = SMALL.model_copy(update={"distractor_discrimination": False})
    assert run(small_project, tmp_path / "b", with_train(small_project, network=without, steps=2)).steps == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "features.pooled"),
        ({"features": {"pooled": True}, "train": {"repeat_short_clips": False}}, "repeat_short_clips"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, dict[str, object]], message: str) -> None:
    data = {"name": "x", "sources": [{"kind": "folder", "name": "a", "path": "clips"}]} | changes
    data["train"] = {**changes.get("train", {}), "network": {"family": "vvs"}}
    with pytest.raises(ConfigError, match=message):
        parse_config(data, origin="test.yaml")


def test_a_network_in_training_mode_gives_no_vectors() -> None:
    network = VvsNetwork(VvsSettings(distractor_discrimination=False), dims=8)
    with pytest.raises(ArgumentError, match="eval"):
        network.train().embed(torch.ones(4, 9, 8))
