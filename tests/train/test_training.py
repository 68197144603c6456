"""Training on cached views: batches, resume, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hapvr.config import OptimizerConfig
from hapvr.errors import DataError
from hapvr.model.checkpoint import load_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.stages.project import Project
from hapvr.train.batch import Batch, BatchSampler
from hapvr.train.checkpoint import list_checkpoints
from hapvr.train.guards import NotFiniteError
from hapvr.train.report import read_history
from hapvr.train.schedule import build_optimizer, build_scheduler
from tests.train.runs import cached_views, run, same_weights, with_train, without_times


def test_batch_is_a_function_of_seed_and_step(small_project: Project) -> None:
    """The same step gives the same batch from a fresh reader, and another seed another one."""
    first, second = cached_views(small_project)[5], cached_views(small_project)[5]
    assert first.video_ids == second.video_ids
    assert torch.equal(first.regions, second.regions)
    other = cached_views(small_project, seed=1)
    assert any(other.sampler.videos(step) != cached_views(small_project).sampler.videos(step) for step in range(3))


def test_batch_pairs_a_weak_and_a_strong_view_of_each_video(small_project: Project) -> None:
    """2 V clips; labels say which share a video; every positive pair has its frame labels, the self pairs included."""
    data = cached_views(small_project)
    batch = data[0]
    assert batch.regions.shape == (8, 4, 9, 32)
    assert batch.video_ids[0::2] == batch.video_ids[1::2]
    assert batch.view_index[0::2].tolist() == [0] * 4
    assert set(batch.view_index[1::2].tolist()) <= {1, 2}
    same = np.equal.outer(batch.video_ids, batch.video_ids)
    assert (batch.labels.numpy()[same] == 1).all()
    assert batch.pair_index.tolist() == (batch.labels > 0).nonzero().tolist()
    assert batch.frame_labels.shape == (len(batch.pair_index), 4, 4)


def test_epoch_holds_every_video_at_most_once() -> None:
    """Batches of one epoch do not repeat a video, and epochs are ordered differently."""
    sampler = BatchSampler("abcdefg", batch_videos=2, seed=0)
    epochs = [[video for step in range(start, start + 3) for video in sampler.videos(step)] for start in (0, 3)]
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch)
    assert epochs[0] != epochs[1]


def test_ranks_share_a_batch(small_project: Project) -> None:
    """With gather two ranks read disjoint parts of the one batch, with its labels and all pairs of their rows."""
    whole = cached_views(small_project)[3]
    parts = [cached_views(small_project, rank=rank, world_size=2)[3] for rank in (0, 1)]
    assert torch.equal(torch.cat([part.regions for part in parts]), whole.regions)
    assert torch.equal(torch.cat([part.pair_index for part in parts]), whole.pair_index)
    assert torch.equal(torch.cat([part.frame_labels for part in parts]), whole.frame_labels)
    assert [part.first_row for part in parts] == [0, 4]
    assert all(torch.equal(part.labels, whole.labels) for part in parts)


def test_ranks_without_gather_have_batches_of_their_own(small_project: Project) -> None:
    """Their videos are parts of one batch; labels are among their own clips only."""
    parts = [cached_views(small_project, rank=rank, world_size=2, gather=False) for rank in (0, 1)]
    whole = parts[0].sampler.videos(3)
    assert parts[1].sampler.videos(3) == whole
    batches = [part[3] for part in parts]
    assert [*batches[0].video_ids[0::2], *batches[1].video_ids[0::2]] == whole
    assert [batch.labels.shape for batch in batches] == [(4, 4), (4, 4)]


def test_labels_of_other_rates_are_made_from_the_embeddings(small_project: Project) -> None:
    """Rates that the stored labels were not made with: the labels of the batch have them, and the clips stay the same."""
    stored = cached_views(small_project)[3]

    def with_top_rate(top_rate: float) -> Batch:
        rates = small_project.config.pseudo_labels.model_copy(update={"top_rate": top_rate})
        config = small_project.config.model_copy(update={"pseudo_labels": rates})
        return cached_views(replace(small_project, config=config))[3]

    same, none = with_top_rate(0.36), with_top_rate(0.0)  # of 4 frames, 0.35 and 0.36 choose the same ones
    assert torch.equal(same.frame_labels, stored.frame_labels)
    assert torch.equal(none.regions, stored.regions)
    assert (stored.frame_labels == 1).any()
    assert not (none.frame_labels == 1).any()


def test_a_part_of_the_videos_is_the_same_for_every_seed(small_project: Project) -> None:
    """Half of the videos, and all of them in the whole; a single video is too few."""
    whole, half = (set(cached_views(small_project, video_rate=rate).sampler.video_ids) for rate in (1.0, 0.5))
    assert len(half) >= len(whole) / 2
    assert half <= whole
    assert set(cached_views(small_project, video_rate=0.5, seed=9).sampler.video_ids) == half
    with pytest.raises(DataError, match=r"1 training videos have views \(train.video_rate takes 0.1 of 8\)"):
        BatchSampler("abcdefgh", batch_videos=2, seed=0, video_rate=0.1)


def test_more_views_of_a_video_by_configuration(small_project: Project) -> None:
    """One weak and both strong views of each video, each once; more than are stored are refused."""
    batch = cached_views(small_project, strong_views=2)[0]
    assert batch.video_ids[0::3] == batch.video_ids[1::3] == batch.video_ids[2::3]
    assert [sorted(views) for views in batch.view_index.view(-1, 3).tolist()] == [[0, 1, 2]] * 4
    with pytest.raises(DataError, match=r"has 2 strong views in a window, and train\.strong_views is 3"):
        cached_views(small_project, strong_views=3)[0]


def test_training_lowers_its_loss_and_writes_a_network(small_project: Project, tmp_path: Path) -> None:
    """Over 30 steps the total loss falls; the result folder loads as a network that differs from a fresh one."""
    result = run(small_project, tmp_path, with_train(small_project, steps=30))
    losses = [line["loss/total"] for line in read_history(tmp_path)]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    assert result.first_step == 0
    network, metadata = load_network(tmp_path / "network")
    assert metadata["steps"] == 30
    assert network.settings.spatial_rate == 0.10


def test_resumed_training_equals_an_uninterrupted_one(small_project: Project, tmp_path: Path) -> None:
    """A run that loses its newest checkpoints and goes on ends with the same weights, bit for bit, and the same history."""
    run(small_project, tmp_path / "whole")
    run(small_project, tmp_path / "cut")
    (tmp_path / "cut" / "result.json").unlink()
    list_checkpoints(tmp_path / "cut" / "checkpoints")[-1].unlink()
    again = run(small_project, tmp_path / "cut")
    assert again.first_step == 6
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
    assert without_times(read_history(tmp_path / "whole")) == without_times(read_history(tmp_path / "cut"))


def test_best_validation_chooses_the_weights(small_project: Project, tmp_path: Path) -> None:
    """The network that is kept is the one of the best validation, not the last."""
    seen: list[torch.Tensor] = []
    values = iter([0.9, 0.1])

    def validate(network: SimilarityNetwork) -> dict[str, float]:
        seen.append(next(network.parameters()).detach().clone())
        return {"mean": next(values)}

    result = run(small_project, tmp_path, validate=validate)
    kept = next(load_network(tmp_path / "network")[0].parameters())
    assert result.best_step == 3
    assert torch.equal(kept, seen[0])
    assert not torch.equal(kept, seen[1])


@pytest.mark.slow
def test_data_workers_change_nothing(small_project: Project, tmp_path: Path) -> None:
    """Batches read ahead in another process give the same weights as batches read in this one."""
    run(small_project, tmp_path / "here")
    run(small_project, tmp_path / "there", with_train(small_project, data_workers=1))
    assert same_weights(tmp_path / "here", tmp_path / "there")


def test_not_finite_loss_stops_with_step_and_videos(small_project: Project, tmp_path: Path) -> None:
    """A learning rate that breaks training ends it with the step, and a file that lists its videos."""
    optimizer = OptimizerConfig(learning_rate=1e30, warmup_steps=0)
    with pytest.raises(NotFiniteError, match=r"training: step \d+: .*learning_rate"):
        run(small_project, tmp_path, with_train(small_project, optimizer=optimizer, steps=50))
    (dump,) = tmp_path.glob("not-finite-*.json")
    assert len(json.loads(dump.read_text())["video_ids"]) == 8


def test_learning_rate_warms_up_and_ends_at_its_floor() -> None:
    """Linear from 1 % to the full rate, then cosine to 10 %."""
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=10)
    optimizer = build_optimizer(SimilarityNetwork(NetworkSettings(), dims=4), config)
    scheduler = build_scheduler(optimizer, config, steps=110)
    rates = []
    for _ in range(110):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[0] == pytest.approx(0.01)
    assert rates[10] == pytest.approx(1.0)
    assert rates[60] == pytest.approx(0.55)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    assert rates.index(max(rates)) == 10
