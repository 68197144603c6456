"""Clips of videos that are shorter than a clip: repeated, or ended by a mask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric

from hapvr.augment.settings import ViewsConfig
from hapvr.config import Config
from hapvr.losses.objective import Objective
from hapvr.stages.project import Project
from hapvr.storage.filesystem import DataRoot
from hapvr.train.cached_views import CachedViews
from hapvr.train.families import build_network
from hapvr.train.loop import train
from hapvr.train.report import History
from hapvr.train.similarity import TrainingModule
from tests.conftest import small_settings
from tests.train.test_draws import frames_of, write_shard
from tests.train.test_online_views import online_views

FRAMES = 8
SHARD = "s-00000"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A training on clips of 8 frames that end with their video."""
    config = Config.model_validate(small_settings(tmp_path, tmp_path))
    changes = {"batch_videos": 8, "steps": 2, "repeat_short_clips": False}
    return config.model_copy(
        update={
            "views": ViewsConfig(num_frames=FRAMES, num_weak=1, num_strong=2),
            "train": config.train.model_copy(update=changes),
        }
    )


@pytest.fixture
def cached(tmp_path: Path, config: Config) -> CachedViews:
    """Views of eight videos with one to eight frames."""
    write_shard(DataRoot(tmp_path), SHARD, [f"v{number:05d}" for number in range(8)], config)
    return CachedViews(DataRoot(tmp_path), [SHARD], config)


def test_cached_clips_have_the_frames_of_their_video(tmp_path: Path, config: Config, cached: CachedViews) -> None:
    """As many as the video has; none are counted where repetitions are trained on."""
    batch = cached[0]
    assert batch.num_frames is not None
    assert batch.num_frames.tolist() == [frames_of(video_id, FRAMES) for video_id in batch.video_ids]
    assert set(batch.num_frames.tolist()) == set(range(1, 9))
    repeated = config.model_copy(update={"train": config.train.model_copy(update={"repeat_short_clips": True})})
    assert CachedViews(DataRoot(tmp_path), [SHARD], repeated)[0].num_frames is None


def test_what_repeats_changes_nothing(config: Config, cached: CachedViews) -> None:
    """Masked frames move neither loss nor gradient, and a clip scores as it does when it is cut after its last frame."""
    batch = cached[0]
    settings, counts = config.train, batch.num_frames
    assert counts is not None
    network = build_network(settings.network, dims=config.whitening.dims, seed=0)
    module = TrainingModule(network, Objective(settings.objective))
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, 2, batch.frame_labels.shape, generator=generator, dtype=torch.int8)
    regions = torch.nn.functional.normalize(batch.regions.float(), dim=-1)
    rest = torch.arange(FRAMES) >= counts[:, None]
    noise = torch.nn.functional.normalize(torch.randn(regions.shape, generator=generator), dim=-1)

    def step(clips: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        network.zero_grad()
        total, _, _, similarity = module(replace(batch, regions=clips, frame_labels=labels))
        total.backward()
        return total.detach(), similarity, [parameter.grad.clone() for parameter in network.parameters()]

    total, similarity, gradients = step(regions)
    torch.testing.assert_close(
        step(torch.where(rest[:, :, None, None], noise, regions)), (total, similarity, gradients)
    )
    repeated = module(replace(batch, regions=regions, frame_labels=labels, num_frames=None))[0]
    assert abs(float(repeated.detach() - total)) > 1e-3
    with torch.no_grad():
        cut = [network.embed(clip[:count])[None] for clip, count in zip(regions, counts.tolist(), strict=True)]
        for row, column in ((0, 1), (1, 0), (2, 5), (3, 3), (7, 12)):
            score = network.score(cut[row], cut[column])
            torch.testing.assert_close(score[0, 0], similarity[row, column], rtol=1e-4, atol=1e-5)


def test_setting_reaches_the_loop(tmp_path: Path, config: Config, cached: CachedViews) -> None:
    """Trainings on repeated clips and on ended ones end with other weights."""
    weights = set()
    for repeat in (True, False):
        folder = tmp_path / str(repeat)
        changed = config.model_copy(update={"train": config.train.model_copy(update={"repeat_short_clips": repeat})})
        result = train(
            changed,
            DataRoot(tmp_path),
            [SHARD],
            folder=folder,
            fabric=Fabric(accelerator="cpu", devices=1),
            validate=None,
            open_logger=lambda first_step, folder=folder: History(folder, first_step=first_step),  # type: ignore[misc]
        )
        weights.add(result.weights_sha256)
    assert len(weights) == 2


def test_online_clips_have_the_frames_of_their_video(small_project: Project) -> None:
    """Clips of 16 frames of videos of six seconds have six frames, and those of the video of one frame have one."""
    views = small_project.config.views.model_copy(update={"num_frames": 16})
    project = Project(
        small_project.config.model_copy(update={"views": views}), small_project.root, small_project.folder
    )
    online = online_views(project, repeat_short_clips=False)
    plans, own = online.plans(0)
    batch = online.finish(online.draw(plans, own))
    assert batch.num_frames is not None
    assert len(batch.video_ids) == len(plans)
    assert batch.num_frames.tolist() == [1 if "видео" in video_id else 6 for video_id in batch.video_ids]
