"""Views that are drawn and extracted in the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric

from hapvr.features.views import plan_cached_views
from hapvr.stages.project import Project
from hapvr.stages.training import data_digests, prepare_training, training_shards
from hapvr.storage.frames import FrameFile
from hapvr.train.online_views import OnlineViews
from hapvr.train.report import read_history
from hapvr.train.source import open_source
from tests.train.runs import cached_views, run, same_weights, with_train


@pytest.fixture(scope="module")
def online(small_project: Project) -> OnlineViews:
    """The online source of the small project."""
    return online_views(small_project)


def online_views(project: Project, **changes: Any) -> OnlineViews:
    """The online source that training opens."""
    config = with_train(project, source="online", **changes)
    source = open_source(config, project.root, training_shards(project), Fabric(accelerator="cpu", devices=1))
    assert isinstance(source, OnlineViews)
    return source


def test_online_features_and_labels_equal_the_cached_ones(small_project: Project, online: OnlineViews) -> None:
    """The same views, drawn and extracted now, give the cached batch: regions to half precision, labels exactly."""
    cached = cached_views(small_project)[1]
    plans = []
    for key in training_shards(small_project):
        ids = FrameFile(small_project.shard("frames", key)).video_ids
        plans += [plan for views in plan_cached_views(ids, small_project.config.views).values() for plan in views]
    by_name = {(plan.video_id, plan.index): plan for plan in plans}
    chosen = [by_name[name] for name in zip(cached.video_ids, cached.view_index.tolist(), strict=True)]
    batch = online.finish(online.draw(chosen, slice(0, len(chosen))))
    assert batch.video_ids == cached.video_ids
    assert torch.equal(batch.labels, cached.labels)
    assert torch.equal(batch.pair_index, cached.pair_index)
    torch.testing.assert_close(batch.regions.float(), cached.regions.float(), atol=4e-3, rtol=0)
    assert (batch.frame_labels == cached.frame_labels).float().mean() > 0.98


def test_online_views_are_new_in_every_batch(small_project: Project, online: OnlineViews) -> None:
    """Views by (seed, number), new in each batch, made again alike; the views of an item share their window."""
    first, second = online[0], online[1]
    assert first.frames.shape == (8, 4, 3, 128, 128)
    assert {plan.index for plan in first.plans}.isdisjoint(plan.index for plan in second.plans)
    assert len({plan.window for plan in first.plans}) == 1
    assert first.plans[0].window != second.plans[0].window
    again = online_views(small_project)[0]
    assert again.plans == first.plans
    assert torch.equal(again.frames, first.frames)
    assert online_views(small_project, seed=1).plans(0)[0][0].window != first.plans[0].window


def test_online_views_of_a_video_by_configuration(small_project: Project) -> None:
    """More views than any cache holds: two weak and three strong ones of each video."""
    item = online_views(small_project, weak_views=2, strong_views=3)[0]
    assert [plan.strength for plan in item.plans[:5]] == ["weak", "weak", "strong", "strong", "strong"]
    assert len({plan.index for plan in item.plans[:5]}) == 5
    assert (item.labels[:5, :5] == 1).all()


@pytest.mark.slow
def test_online_training_needs_frames_only(small_project: Project, tmp_path: Path) -> None:
    """It is prepared, trains, and is reproducible, with frames as its lineage."""
    config = with_train(small_project, source="online", steps=2, log_every_steps=1)
    project = Project(config, small_project.root, small_project.folder)
    assert set(data_digests(project, training_shards(project))) == {
        "whitening",
        *(f"frames/{key}" for key in training_shards(project)),
    }
    run(small_project, tmp_path / "one", config)
    run(small_project, tmp_path / "two", config)
    assert [line["step"] for line in read_history(tmp_path / "one")] == [0, 1]
    assert same_weights(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_online_views_are_drawn_ahead_in_other_processes(small_project: Project, tmp_path: Path) -> None:
    """Data workers draw, the training process extracts; the weights are the same, and the run is tracked as any other."""
    config = with_train(small_project, source="online", steps=2)
    prepare_training(Project(config, small_project.root, small_project.folder), "online", tags={})
    run(small_project, tmp_path / "here", config)
    run(small_project, tmp_path / "there", with_train(small_project, source="online", steps=2, data_workers=1))
    assert same_weights(tmp_path / "here", tmp_path / "there")
