"""Mined pairs of training videos: they share batches and are positives of each other, and say nothing of frames."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hapvr.config import TrainConfig
from hapvr.errors import DamagedError, DataError
from hapvr.stages.project import Project
from hapvr.train.batch import BatchSampler, join_groups, largest_group
from hapvr.train.mined_pairs import MINED_NAME, MinedPairs, read_mined_pairs, write_mined_pairs
from tests.train.runs import cached_views, run, same_weights


def test_groups_grow_by_the_surest_pairs() -> None:
    """A pair that would make a group too large is left out; groups that are given stay whole."""
    pairs = [("a", "b"), ("c", "d"), ("b", "c"), ("d", "e"), ("e", "f"), ("x", "a")]
    assert join_groups([], pairs, largest=4) == [["a", "b", "c", "d"], ["e", "f"]]
    assert join_groups([["a", "b", "c"]], [("c", "d")], largest=2) == [["a", "b", "c"]]
    assert join_groups([["a", "b"]], [], largest=4) == [["a", "b"]]


def test_batches_have_both_videos_of_a_pair() -> None:
    """In every epoch, wherever the batch can hold the group."""
    ids = [f"v{number:02d}" for number in range(32)]
    groups = join_groups([], [("v03", "v30"), ("v30", "v11")], largest=largest_group(16))
    sampler = BatchSampler(ids, batch_videos=16, seed=1, groups=groups)
    for number in range(20):
        videos = sampler.videos(number)
        assert len({"v03", "v11", "v30"} & set(videos)) in (0, 3)


def test_clips_of_a_pair_are_positive_without_frame_labels(small_project: Project) -> None:
    """Their videos are labelled as positive; frames are labelled only between clips of one video."""
    one, other, *_ = cached_views(small_project).sampler.video_ids
    views = cached_views(small_project, mined=[(other, one)], batch_videos=64)
    plain = cached_views(small_project, batch_videos=64)
    batch = views[0]
    first = torch.tensor([video_id == one for video_id in batch.video_ids])
    second = torch.tensor([video_id == other for video_id in batch.video_ids])
    assert bool((batch.labels[first][:, second] == 1).all())
    assert bool((plain[0].labels == -1).any())
    assert bool((batch.labels == -1).any())
    assert len(batch.pair_index) == int((plain[0].labels == 1).sum())


def test_a_training_with_mined_pairs_learns_something_else(small_project: Project, tmp_path: Path) -> None:
    """Other labels give other weights; the same pairs the same weights."""
    ids = cached_views(small_project).sampler.video_ids
    for name, mined in (("plain", ()), ("mined", ((ids[0], ids[1]),)), ("again", ((ids[0], ids[1]),))):
        (tmp_path / name).mkdir()
        run(small_project, tmp_path / name, mined=mined)
    assert same_weights(tmp_path / "mined", tmp_path / "again")
    assert not same_weights(tmp_path / "mined", tmp_path / "plain")
    with pytest.raises(DataError, match="mined_pairs"):
        run(small_project, tmp_path / "mined")


def test_a_training_from_before_there_were_mined_pairs_goes_on() -> None:
    """The pairs are compared with those of a checkpoint, not the settings that they come from."""
    assert not [name for name in TrainConfig().content() if name.startswith("mined")]


def test_the_file_of_a_run(tmp_path: Path) -> None:
    assert read_mined_pairs(tmp_path) is None
    found = MinedPairs((("a", "b"), ("a", "c")), "models:/hapvr/1", 12, 0.95)
    write_mined_pairs(tmp_path, found)
    assert read_mined_pairs(tmp_path) == found
    assert found.summary()["pairs"] == 2
    (tmp_path / MINED_NAME).write_text("{")
    with pytest.raises(DamagedError, match=r"mined_pairs.json is damaged .*start the training again"):
        read_mined_pairs(tmp_path)
