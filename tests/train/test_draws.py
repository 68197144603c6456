"""What training draws: windows all over a video, and donors that are in the batch and labelled."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.io import encode_jpeg

from hapvr.augment.settings import ViewsConfig
from hapvr.config import Config
from hapvr.errors import DataError
from hapvr.features.views import GROUP_VIDEOS, ViewDrawer, ViewPlan, plan_cached_views
from hapvr.losses.objective import Objective
from hapvr.model.network import SimilarityNetwork
from hapvr.seeding import derive_seed
from hapvr.stages.project import Project
from hapvr.stages.training import training_shards
from hapvr.storage.filesystem import DataRoot
from hapvr.storage.frames import VideoFrames
from hapvr.storage.shard_build import ShardRecipe, VideoEntry, build_shard
from hapvr.storage.shards import Shard, index_row
from hapvr.storage.tensors import tensor_field
from hapvr.storage.views import (
    DRAWING_VERSION,
    EMBEDDINGS_STAGE,
    LABELS_STAGE,
    VIEWS_STAGE,
    ViewRow,
    view_columns,
    view_fields,
)
from hapvr.train.batch import Batch, BatchSampler
from hapvr.train.cached_views import CachedViews
from hapvr.train.families import build_network
from hapvr.train.similarity import TrainingModule
from tests.train.runs import cached_views
from tests.train.test_online_views import online_views

import pyarrow as pa  # isort: skip

LONG = 300


def long_video(video_id: str) -> VideoFrames:
    """300 tiny frames, one a second."""
    jpeg = encode_jpeg(torch.zeros(3, 16, 16, dtype=torch.uint8)).numpy().tobytes()
    return VideoFrames(video_id, (jpeg,) * LONG, tuple(map(float, range(LONG))))


def touched(plans: list[ViewPlan], config: ViewsConfig) -> set[int]:
    """The frames that the clips of these plans show."""
    drawer = ViewDrawer(long_video, config=config, size_px=8)
    return {index for plan in plans for index in drawer.draw(plan)[0].source_index if index >= 0}


def test_online_draws_touch_nearly_all_of_a_long_video() -> None:
    """300 draws of a 300-frame video, as online training numbers them, show at least 250 of its frames."""
    config = ViewsConfig()
    plans = [
        ViewPlan("a", derive_seed(0, "view", number, place), strength, derive_seed(0, "window", number))
        for number in range(150)
        for place, strength in enumerate(("weak", "strong"))
    ]
    assert len(touched(plans, config)) >= 250
    weak, strong = (touched([plan], config) for plan in plans[:2])
    assert max(weak | strong) - min(weak | strong) < 2 * config.num_frames


def test_cached_views_are_spread_over_a_long_video() -> None:
    """Four windows of 56 frames lie in the four parts of the video; the twelve views show most of them."""
    config = ViewsConfig()
    plans = plan_cached_views(["a"], config)["a"]
    seen = [touched([plan for plan in plans if plan.window == window], config) for window in range(4)]
    assert all(max(frames) - min(frames) < 56 for frames in seen)
    assert [min(frames) // 61 for frames in seen] == [0, 1, 2, 3]
    assert len(set().union(*seen)) >= 150
    one = touched(plan_cached_views(["a"], config.model_copy(update={"windows": 1}))["a"], config)
    assert len(one) <= 56


def test_cached_items_are_of_one_window_and_all_windows_are_drawn(stored: Callable[..., CachedViews]) -> None:
    """The views of a video in a batch share their window, which (seed, number) draws."""
    config = ViewsConfig(num_frames=4)
    data = stored(8, views=config)
    drawn: set[tuple[str, int]] = set()
    for number in range(30):
        batch = data[number]
        names = zip(batch.video_ids, map(config.window_of, batch.view_index.tolist()), strict=True)
        for video_id, windows in itertools.groupby(names, key=lambda name: name[0]):
            (window,) = {window for _, window in windows}
            drawn.add((video_id, window))
    assert len(drawn) == 8 * 4


def test_online_donors_are_in_the_batch_and_labelled(small_project: Project) -> None:
    """Every clip with a donor is a positive of all clips of its donor."""
    online = online_views(small_project, batch_videos=4, strong_views=3)
    num_donors = 0
    for number in range(6):
        plans, own = online.plans(number)
        item = online.draw(plans, slice(own.start, own.start + 1))
        for row, plan in enumerate(item.plans):
            if plan.donor_id:
                of_donor = [other.video_id == plan.donor_id for other in item.plans]
                assert sum(of_donor) == 4
                assert (item.labels[row][torch.tensor(of_donor)] == 1).all()
                num_donors += 1
    assert num_donors > 10


def donors_of(data: CachedViews, batch: Batch) -> list[tuple[int, str]]:
    """Row of the batch and donor, for its clips that have one."""
    rows = [
        next(row for row in data._rows[video_id] if row.view_index == index)
        for video_id, index in zip(batch.video_ids, batch.view_index.tolist(), strict=True)
    ]
    return [(number, row.donor_id) for number, row in enumerate(rows) if row.donor_id]


@pytest.fixture
def stored(tmp_path: Path, small_project: Project) -> Callable[..., CachedViews]:
    """Opens views of videos that were never drawn: real files with the rows of real plans, and noise for tensors."""

    def make(num_videos: int, *, views: ViewsConfig, batch_videos: int = 8, shard_videos: int = 512) -> CachedViews:
        config = small_project.config.model_copy(
            update={
                "views": views,
                "train": small_project.config.train.model_copy(update={"batch_videos": batch_videos}),
            }
        )
        root = DataRoot(tmp_path)
        ids = [f"v{number:05d}" for number in range(num_videos)]
        keys = []
        for start in range(0, num_videos, shard_videos):
            keys.append(f"s-{start:05d}")
            write_shard(root, keys[-1], ids[start : start + shard_videos], config)
        return CachedViews(root, keys, config)

    return make


def frames_of(video_id: str, longest: int) -> int:
    """How many frames a stored video has: 1 to those of a clip, by its number."""
    return int(video_id.removeprefix("v")) % longest + 1


def write_shard(root: DataRoot, key: str, video_ids: list[str], config: Config) -> None:
    """Views, embeddings and labels of videos that were never drawn, see `stored`."""
    views = config.views
    frames, count = views.num_frames, views.num_weak + views.num_strong
    settings = {"drawing": DRAWING_VERSION, "views": views.model_dump(mode="json"), "sampling": {}, "crop_px": 8}
    plans = plan_cached_views(video_ids, views)

    def build(stage: str, shape: tuple[int, ...], more: dict[str, object]) -> None:
        def make(chosen):  # type: ignore[no-untyped-def]
            for video_id in chosen:
                shown = tuple(number % frames_of(video_id, frames) for number in range(frames))
                rows = [
                    ViewRow(video_id, plan.index, plan.strength, (), plan.donor_id, shown) for plan in plans[video_id]
                ]
                values = np.random.default_rng(0).normal(size=(count, *shape)).astype(np.float16)
                yield VideoEntry(index_row(video_id, count), view_columns(rows, values))

        recipe = ShardRecipe(
            shard=Shard(root, stage, key),
            settings=settings | more,
            inputs={},
            columns=view_fields("values", shape=shape),
        )
        build_shard(recipe, video_ids=video_ids, make=make)

    build(VIEWS_STAGE, (frames, 9, 32), {"features": {}})
    build(EMBEDDINGS_STAGE, (frames, 2), {})

    def labels(chosen):  # type: ignore[no-untyped-def]
        query, reference = np.divmod(np.arange(count * count), count)
        for video_id in chosen:
            data = ([video_id] * count**2, query, reference, np.zeros((count**2, frames, frames), np.int8))
            yield VideoEntry(index_row(video_id, count**2), data)

    recipe = ShardRecipe(
        shard=Shard(root, LABELS_STAGE, key),
        settings={"pseudo_labels": config.pseudo_labels.model_dump(mode="json")},
        inputs={EMBEDDINGS_STAGE: Shard(root, EMBEDDINGS_STAGE, key).data_digest()},
        columns=(
            pa.field("video_id", pa.string()),
            pa.field("query_view", pa.int32()),
            pa.field("reference_view", pa.int32()),
            tensor_field("labels", shape=(frames, frames), dtype="int8"),
        ),
    )
    build_shard(recipe, video_ids=video_ids, make=labels)


@pytest.mark.slow
@pytest.mark.parametrize("batch_videos", [64, 30])
def test_cached_donors_are_in_the_batch_and_labelled_at_5000_videos(
    stored: Callable[..., CachedViews], batch_videos: int
) -> None:
    """In 20 batches of 64 videos, a quarter of the strong clips has a donor or more, and each is labelled.

    30 videos are no multiple of the groups, so some batches hold videos without their group, and never their donors' clips.
    """
    data = stored(5000, views=ViewsConfig(num_frames=4, num_weak=1, num_strong=2), batch_videos=batch_videos)
    num_donors = num_clips = 0
    for number in (0, 1, 2, 77, 78, 500, 1001):
        batch = data[number]
        assert len(set(batch.video_ids)) == batch_videos
        for row, donor_id in donors_of(data, batch):
            of_donor = torch.tensor([video_id == donor_id for video_id in batch.video_ids])
            assert of_donor.sum() == 2
            assert (batch.labels[row][of_donor] == 1).all()
            num_donors += 1
        num_clips += batch_videos
    assert num_donors / num_clips > 0.2


def test_rho_matters_where_clips_have_donors(stored: Callable[..., CachedViews]) -> None:
    """Without the self pair a query has several positives only through donors; then rho changes the loss."""
    data = stored(16, views=ViewsConfig(num_frames=4, num_weak=1, num_strong=2), batch_videos=16)
    batch = next(data[number] for number in range(9) if donors_of(data, data[number]))
    network: SimilarityNetwork = build_network(data_config := data._settings.network, dims=32, seed=0)
    assert data_config.comparator
    losses = []
    for rho in (0.0, 0.1, 5.0):
        objective = data._settings.objective.model_copy(
            update={"video_ap_options": {"rho": rho}, "include_self": False}
        )
        module = TrainingModule(network, Objective(objective))
        regions = torch.nn.functional.normalize(batch.regions.float(), dim=-1)
        terms = module(replace(batch, regions=regions))[1]
        losses.append(float(terms["video_ap"].detach()))
    assert losses[0] > losses[1] > losses[2]


def test_groups_stay_together_in_the_parts_of_ranks() -> None:
    """Batches hold whole groups, and every video comes up in an epoch of aligned ones."""
    ids = [f"{number:02d}" for number in range(40)]
    groups = [ids[start : start + GROUP_VIDEOS] for start in range(0, 32, GROUP_VIDEOS)]
    sampler = BatchSampler(ids, batch_videos=8, seed=0, groups=groups)
    epoch = [sampler.videos(number) for number in range(5)]
    assert sorted(video for videos in epoch for video in videos) == ids
    for group, videos in itertools.product(groups, epoch):
        assert len({*group} & {*videos}) in (0, 4)
    halves = BatchSampler(ids, batch_videos=8, seed=0, groups=groups, world_size=2, separate=True)
    for group, number in itertools.product(groups, range(5)):
        videos = halves.videos(number)
        assert all(len({*group} & {*part}) in (0, 4) for part in (videos[:4], videos[4:]))


def test_places_without_a_whole_group_get_videos_that_can_stand_alone() -> None:
    """Six videos cannot be whole groups of four: videos that can stand alone fill the batch, others only without those."""
    ids = [f"{number:02d}" for number in range(16)]
    groups = [ids[start : start + 4] for start in range(0, 16, 4)]
    alone = {ids[0], ids[5], ids[9], ids[15]}
    sampler = BatchSampler(ids, batch_videos=6, seed=0, groups=groups, alone=alone)
    for number in range(4):
        videos = set(sampler.videos(number))
        whole = [group for group in groups if videos.issuperset(group)]
        assert len(videos) == 6
        assert videos.difference(*whole) <= alone
    without = BatchSampler(ids, batch_videos=6, seed=0, groups=groups, alone=())
    assert len(set(without.videos(0))) == 6


def test_a_part_of_the_videos_is_made_of_whole_groups() -> None:
    """A larger rate adds videos to those of a smaller one."""
    ids = [f"{number:02d}" for number in range(40)]
    groups = [ids[start : start + 4] for start in range(0, 40, 4)]
    parts = [
        set(BatchSampler(ids, batch_videos=4, seed=0, groups=groups, video_rate=rate).video_ids) for rate in (0.2, 0.5)
    ]
    assert [len(part) for part in parts] == [8, 20]
    assert parts[0] < parts[1]


def test_views_of_the_version_before_are_refused(small_project: Project, tmp_path: Path) -> None:
    """Views that were drawn by other rules, or with other settings, are named with what to do."""
    config = small_project.config
    changed = config.model_copy(update={"views": config.views.model_copy(update={"num_strong": 3})})
    with pytest.raises(DataError, match=r"views\.num_strong: wanted 3, found 2.*Materialise it again"):
        CachedViews(small_project.root, training_shards(small_project), changed)
    root = DataRoot(tmp_path)
    write_shard(root, "s-0", ["v0", "v1"], config)
    shard = Shard(root, VIEWS_STAGE, "s-0")
    found = shard.require({})
    settings = {name: value for name, value in found.settings.items() if name != "drawing"}
    shard.write_index(
        shard.index().to_dicts(), provenance=type(found)(VIEWS_STAGE, settings, found.inputs, found.environment)
    )
    with pytest.raises(DataError, match=r"drawing: wanted 2, found None.*Materialise it again"):
        CachedViews(root, ["s-0"], config)


def test_a_drawn_clip_is_a_positive_of_its_donor_in_a_real_batch(small_project: Project) -> None:
    """On real views: the label matrix of a batch joins each clip with a donor to the donor's clips, both ways."""
    data = cached_views(small_project)
    found = 0
    for number in range(20):
        batch = data[number]
        for row, donor_id in donors_of(data, batch):
            of_donor = torch.tensor([video_id == donor_id for video_id in batch.video_ids])
            assert of_donor.any()
            assert (batch.labels[row, of_donor] == 1).all()
            assert (batch.labels[of_donor, row] == 1).all()
            found += 1
    assert found > 0
