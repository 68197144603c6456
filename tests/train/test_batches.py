"""Batches: a function of seed and number, with hosts that are labelled."""

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from hapvr.augment.views import GROUP_VIDEOS, ViewPlan, plan_cached_views
from hapvr.config import EvaluationConfig
from hapvr.data.features import LABELS_STAGE, VIEWS_STAGE
from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import FrameFile
from hapvr.data.shards import Shard
from hapvr.errors import DataError
from hapvr.losses.objective import Objective
from hapvr.model.checkpoint import build_network
from hapvr.steps.project import Project
from hapvr.steps.training import prepare_training
from hapvr.steps.training_data import training_shards
from hapvr.train.batch import Batch, video_pair_labels
from hapvr.train.sampler import BatchSampler, drawn_part, look_alikes
from hapvr.train.similarity import TrainingModule
from hapvr.train.sources.cached_views import CachedViews
from hapvr.train.sources.online_views import OnlineViews
from tests.train.runs import cached_views, inputs_of, with_train


def online_views(project: Project, **changes: Any) -> OnlineViews:
    """All stored frames of a project, with changes of its training settings."""
    return OnlineViews(inputs_of(project, with_train(project, source="online", **changes)))


def batch_and_plans(views: CachedViews, number: int) -> tuple[Batch, list[ViewPlan]]:
    """A batch, and the view that each of its clips is."""
    with patch.object(views, "build", wraps=views.build) as build:
        return views[number], build.call_args.args[0]


@pytest.fixture(scope="module")
def online(small_project: Project) -> OnlineViews:
    return online_views(small_project)


def test_video_pair_labels_match_the_reference_batch(golden: dict[str, torch.Tensor]) -> None:
    """A batch of three videos in which one strong view was pasted into another."""
    labels = video_pair_labels([("a",), ("b",), ("c",), ("a",), ("a", "b"), ("c",)])
    assert torch.equal(labels > 0, golden["labels"].bool())


@given(st.integers(2, 40), st.integers(1, 12), st.integers(0, 3), st.integers(1, 3))
def test_epochs_and_ranks_partition_the_videos(
    count: int, size: int, seed: int, ranks: int
) -> None:
    """No video comes twice in an epoch, and ranks have disjoint parts that are the batch, for
    whatever sizes."""
    ids = [f"{number:02d}" for number in range(count)]
    if count < 2 * ranks:
        with pytest.raises(DataError, match=rf"negatives need at least {2 * ranks}; add videos"):
            BatchSampler(ids, batch_videos=size * ranks, seed=seed, world_size=ranks)
        return

    wanted = {"batch_videos": size * ranks, "seed": seed, "world_size": ranks}
    parts = [BatchSampler(ids, rank=rank, **wanted) for rank in range(ranks)]
    per_epoch = count // parts[0].batch_videos
    for start in (0, per_epoch):
        epoch = [
            video for number in range(start, start + per_epoch) for video in parts[0].videos(number)
        ]
        assert len(set(epoch)) == len(epoch) == per_epoch * parts[0].batch_videos

    whole = parts[0].videos(0)
    assert [video for part in parts for video in part.videos(0)[part.rank_slice()]] == whole


def test_videos_of_a_group_follow_each_other() -> None:
    """So aligned batches hold whole groups, and every video comes up in an epoch."""
    ids = [f"{number:02d}" for number in range(40)]
    groups = [ids[start : start + GROUP_VIDEOS] for start in range(0, 40, GROUP_VIDEOS)]
    sampler = BatchSampler(ids, batch_videos=8, seed=0, groups=groups)
    epoch = [sampler.videos(number) for number in range(5)]
    assert sorted(video for videos in epoch for video in videos) == ids
    for group, videos in itertools.product(groups, epoch):
        assert len({*group} & {*videos}) in (0, 4)


def test_batch_is_a_function_of_seed_and_number(small_project: Project) -> None:
    """The same number gives the same batch from a fresh reader, and another seed another one."""
    first = cached_views(small_project)[5]
    second = cached_views(small_project)[5]
    assert first.video_ids == second.video_ids
    assert torch.equal(first.regions, second.regions)
    reseeded_views = cached_views(small_project, seed=1)
    assert any(
        reseeded_views.sampler.videos(step) != cached_views(small_project).sampler.videos(step)
        for step in range(3)
    )


@pytest.fixture(scope="module")
def first_batch(small_project: Project) -> tuple[Batch, list[ViewPlan]]:
    return batch_and_plans(cached_views(small_project), 0)


def test_a_batch_has_a_weak_and_a_strong_view_of_each_video(
    first_batch: tuple[Batch, list[ViewPlan]],
) -> None:
    batch, plans = first_batch
    assert batch.video_ids[0::2] == batch.video_ids[1::2]
    assert {plan.index for plan in plans[0::2]} == {0}
    assert {plan.index for plan in plans[1::2]} <= {1, 2}


def test_a_batch_has_the_regions_of_all_frames(first_batch: tuple[Batch, list[ViewPlan]]) -> None:
    batch, _ = first_batch
    assert batch.regions.shape == (8, 4, 9, 32)


def test_clips_of_one_video_are_positives(first_batch: tuple[Batch, list[ViewPlan]]) -> None:
    batch, _ = first_batch
    same = np.equal.outer(batch.video_ids, batch.video_ids)
    assert (batch.labels.numpy()[same] == 1).all()


def test_every_positive_pair_has_frame_labels(first_batch: tuple[Batch, list[ViewPlan]]) -> None:
    """Self pairs included."""
    batch, _ = first_batch
    assert batch.pair_index.tolist() == (batch.labels > 0).nonzero().tolist()
    assert batch.frame_labels.shape == (len(batch.pair_index), 4, 4)


def test_all_frames_count_where_short_clips_are_repeated(
    first_batch: tuple[Batch, list[ViewPlan]],
) -> None:
    batch, _ = first_batch
    assert batch.num_frames is None


def test_frames_count_up_to_the_end_of_the_video_where_clips_are_not_repeated(
    small_project: Project,
) -> None:
    batch = cached_views(small_project, repeat_short_clips=False)[0]
    lengths = [1 if "видео" in video_id else 4 for video_id in batch.video_ids]
    assert batch.num_frames.tolist() == lengths


def test_look_alikes_share_a_batch_and_copies_do_not() -> None:
    """Groups join those that look most like them until they fill a batch; known copies of each
    other stay apart."""
    angles = {"a": 0.0, "b": 1.5, "c": 0.1, "d": 1.4, "e": 0.05, "f": 3.0}
    means = {name: torch.tensor([np.cos(angle), np.sin(angle)]) for name, angle in angles.items()}
    groups = [[name] for name in angles]
    assert look_alikes(groups, means, copies={}, size=2) == [["a", "e"], ["b", "d"], ["c", "f"]]
    apart = look_alikes(groups, means, copies={"a": "1", "e": "1"}, size=2)
    assert apart == [["a", "c"], ["b", "d"], ["e", "f"]]
    assert look_alikes(groups, means, copies=dict.fromkeys(angles, "1"), size=2) == groups


def unit(batch: Batch) -> Batch:
    """The batch with regions of unit norm, in float32."""
    return replace(batch, regions=torch.nn.functional.normalize(batch.regions.float(), dim=-1))


def test_a_drawn_clip_is_a_positive_of_its_host(small_project: Project) -> None:
    """On real views: the label matrix of a batch joins each clip with a host to the host's clips,
    both ways."""
    data = cached_views(small_project)
    num_hosted_clips = 0
    for number in range(20):
        batch, plans = batch_and_plans(data, number)
        for row, plan in enumerate(plans):
            of_host = torch.tensor([video_id == plan.host_id for video_id in batch.video_ids])
            if not of_host.any():  # no host, or the batch ends within their group
                continue
            assert (batch.labels[row, of_host] == 1).all()
            assert (batch.labels[of_host, row] == 1).all()
            assert batch.source_ids[row, 1] == batch.source_ids[of_host, 0][0]
            num_hosted_clips += 1

    assert num_hosted_clips > 0


def test_what_repeats_changes_nothing(small_project: Project) -> None:
    """Masked frames move neither loss nor gradient, and a clip scores as it does when it is cut
    after its last frame."""
    batch = cached_views(small_project)[0]
    settings = small_project.config.train
    counts = torch.tensor([1, 2, 3, 4, 1, 2, 3, 4])
    network = build_network(settings.network, dims=32, seed=0)
    module = TrainingModule(network, Objective(settings.objective))
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, 2, batch.frame_labels.shape, generator=generator, dtype=torch.int8)
    batch = replace(unit(batch), frame_labels=labels, num_frames=counts)
    regions = batch.regions
    rest = torch.arange(4) >= counts[:, None]
    noise = torch.nn.functional.normalize(torch.randn(regions.shape, generator=generator), dim=-1)

    def step(clips: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        network.zero_grad()
        total, _ = module(replace(batch, regions=clips))
        total.backward()
        return total.detach(), [parameter.grad.clone() for parameter in network.parameters()]

    total, gradients = step(regions)
    torch.testing.assert_close(
        step(torch.where(rest[:, :, None, None], noise, regions)), (total, gradients)
    )
    repeated = module(replace(batch, num_frames=None))[0]
    assert abs(float(repeated.detach() - total)) > 1e-3
    with torch.no_grad():
        embedded = network.embed(regions)
        similarity = network.compare(
            embedded, embedded, query_mask=~rest, reference_mask=~rest
        ).video
        cut = [
            network.embed(clip[:count])[None]
            for clip, count in zip(regions, counts.tolist(), strict=True)
        ]
        for row, column in ((0, 1), (1, 0), (2, 5), (3, 3), (7, 4)):
            score = network.compare(cut[row], cut[column]).video
            torch.testing.assert_close(score[0, 0], similarity[row, column], rtol=1e-4, atol=1e-5)


def test_online_features_and_labels_equal_the_cached_ones(
    small_project: Project, online: OnlineViews
) -> None:
    """The same views, drawn and extracted now, give the cached batch: regions to half precision,
    labels exactly."""
    cached, shown = batch_and_plans(cached_views(small_project), 1)
    plans = []
    for key in training_shards(small_project):
        ids = FrameFile(small_project.shard("frames", key)).video_ids
        plans += [
            plan
            for views in plan_cached_views(ids, small_project.config.views).values()
            for plan in views
        ]

    by_name = {(plan.video_id, plan.index): plan for plan in plans}
    chosen = [by_name[plan.video_id, plan.index] for plan in shown]
    batch = online.finish((torch.stack([online._files.draw(plan) for plan in chosen]), 0, chosen))
    assert batch.video_ids == cached.video_ids
    assert torch.equal(batch.labels, cached.labels)
    assert torch.equal(batch.pair_index, cached.pair_index)
    assert torch.equal(batch.source_ids, cached.source_ids)
    torch.testing.assert_close(batch.regions.float(), cached.regions.float(), atol=4e-3, rtol=0)
    assert (batch.frame_labels == cached.frame_labels).float().mean() > 0.98


def test_online_views_of_a_batch_share_their_window(online: OnlineViews) -> None:
    frames, _, plans = online[0]
    assert frames.shape == (8, 4, 3, 128, 128)
    assert len({plan.window for plan in plans}) == 1


def test_online_views_are_new_in_every_batch(online: OnlineViews) -> None:
    _, _, first = online[0]
    _, _, second = online[1]
    assert {plan.index for plan in first}.isdisjoint(plan.index for plan in second)
    assert first[0].window != second[0].window


def test_online_views_follow_from_seed_and_number(
    small_project: Project, online: OnlineViews
) -> None:
    frames, _, plans = online[0]
    frames_again, _, plans_again = online_views(small_project)[0]
    assert plans_again == plans
    assert torch.equal(frames_again, frames)


def test_another_seed_gives_other_online_views(small_project: Project, online: OnlineViews) -> None:
    _, _, plans = online[0]
    _, _, reseeded_plans = online_views(small_project, seed=1)[0]
    assert reseeded_plans[0].window != plans[0].window


@pytest.mark.slow
def test_online_batches_label_hosts_and_count_frames(small_project: Project) -> None:
    """A clip with a host is a positive of all clips of its host. Clips of 8 frames of videos of six
    seconds have six frames, and those of a single picture one."""
    views = small_project.config.views.model_copy(
        update={"num_frames": 8, "video_in_video_rate": 1.0}
    )
    config = small_project.config.model_copy(update={"views": views})
    online = online_views(replace(small_project, config=config), repeat_short_clips=False)
    item = online[number_with(online, "видео")]
    plans = item[2]
    batch = online.finish(item)
    assert [plan.strength for plan in plans[:2]] == ["weak", "strong"]
    assert batch.num_frames.tolist() == [
        1 if "видео" in video_id else 6 for video_id in batch.video_ids
    ]
    assert {plan.strength for plan in plans if plan.host_id} == {"strong"}
    for row, plan in enumerate(plans):
        if plan.host_id:
            of_host = torch.tensor([other.video_id == plan.host_id for other in plans])
            assert (batch.labels[row][of_host] == 1).all()


def number_with(views: OnlineViews, name: str) -> int:
    """The first batch with a video of this name; each has its turn in the end."""
    for number in itertools.count():
        if any(name in video_id for video_id in views.sampler.videos(number)):
            return number

    raise AssertionError("numbers have no end")


@pytest.fixture
def copied(small_project: Project, tmp_path: Path) -> Project:
    """The small project's training data, which a test may spoil."""
    for name in ("manifest", "whitening", VIEWS_STAGE, LABELS_STAGE):
        shutil.copytree(small_project.root.local_path(name), tmp_path / name)
    return Project(small_project.config, DataRoot(tmp_path), small_project.folder)


def spoil_backbone(project: Project) -> None:
    """Say that a shard was made with other weights."""
    shard = Shard(project.root, VIEWS_STAGE, training_shards(project)[1])
    stored_provenance = shard.require({})
    stored_provenance.settings["features"]["backbone"]["sha256"] = "0" * 64
    shard.write_index(shard.index().to_dicts(), provenance=stored_provenance)


def spoil_embeddings(project: Project) -> None:
    first, second = training_shards(project)[:2]
    for name in ("index.parquet", "data.parquet"):
        place = project.root.local_path(f"{LABELS_STAGE}/{second}/{name}")
        shutil.copy(place, project.root.local_path(f"{LABELS_STAGE}/{first}/{name}"))


def start(project: Project) -> None:
    unmeasured = EvaluationConfig(benchmarks=(), validation=None)
    project = replace(project, config=project.config.model_copy(update={"evaluation": unmeasured}))
    prepare_training(project, "spoilt", tags={})
    CachedViews(inputs_of(project, project.config))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            spoil_backbone,
            r"training_views of shard .* made with other settings: .*features\.backbone\.sha256",
        ),
        (spoil_embeddings, "not of the same views; materialise both again"),
    ],
)
def test_data_that_does_not_belong_together_is_refused(
    copied: Project, spoil: Callable[[Project], None], message: str
) -> None:
    """Before anything is trained; the message says what to make again."""
    spoil(copied)
    with pytest.raises(DataError, match=message):
        start(copied)


def test_a_part_of_the_videos_takes_part() -> None:
    """HAP-VR Table 2 trains on 10 %: about so many, the same ones whatever else there is."""
    names = [f"source/{number}.mp4" for number in range(2000)]
    part = drawn_part(names, rate=0.1)
    assert 140 < len(part) < 260
    assert drawn_part(names[:500], rate=0.1) == part & set(names[:500])
    assert drawn_part(names, rate=1) == set(names)
