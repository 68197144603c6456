"""Mined pairs of training videos: they share batches and are positives of each other, and say nothing of frames."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hapvr.errors import DamagedError
from hapvr.stages.project import Project
from hapvr.train.batch import join_groups
from hapvr.train.mined_pairs import MINED_NAME, MinedPairs, read_mined_pairs, write_mined_pairs
from tests.train.runs import cached_views, run, same_weights


def test_groups_grow_by_the_surest_pairs() -> None:
    """A pair that would make a group too large is left out; groups that are given stay whole."""
    pairs = [("a", "b"), ("c", "d"), ("b", "c"), ("d", "e"), ("e", "f"), ("x", "a")]
    assert join_groups([], pairs, largest=4) == [["a", "b", "c", "d"], ["e", "f"]]
    assert join_groups([["a", "b", "c"]], [("c", "d")], largest=2) == [["a", "b", "c"]]
    assert join_groups([["a", "b"]], [], largest=4) == [["a", "b"]]


def test_batches_have_both_videos_of_a_pair(small_project: Project) -> None:
    """Both are in the same batch of every epoch, are labelled, and only clips of one video have frame labels."""
    plain = cached_views(small_project, batch_videos=4)
    one, other = plain.sampler.video_ids[0], plain.sampler.video_ids[-1]
    views = cached_views(small_project, mined=[(other, one)], batch_videos=4)
    seen = 0
    for number in range(8):
        batch, videos = views[number], views.sampler.videos(number)
        assert (one in videos) == (other in videos)
        seen += one in videos
        first = torch.tensor([video_id == one for video_id in batch.video_ids])
        second = torch.tensor([video_id == other for video_id in batch.video_ids])
        assert bool((batch.labels[first][:, second] == 1).all())
        apart = ~(first | second)
        strangers = batch.labels[first][:, apart]
        assert bool((strangers == -1).any()) or not bool(apart.any())
        for query, reference in batch.pair_index.tolist():
            assert not (bool(first[query]) and bool(second[reference]))
    assert seen > 0


def test_a_training_with_mined_pairs_learns_something_else(small_project: Project, tmp_path: Path) -> None:
    """Other labels give other weights; the same pairs the same weights."""
    ids = cached_views(small_project).sampler.video_ids
    for name, mined in (("plain", ()), ("mined", ((ids[0], ids[1]),)), ("again", ((ids[0], ids[1]),))):
        (tmp_path / name).mkdir()
        run(small_project, tmp_path / name, mined=mined)
    assert same_weights(tmp_path / "mined", tmp_path / "again")
    assert not same_weights(tmp_path / "mined", tmp_path / "plain")


def test_the_file_of_a_run(tmp_path: Path) -> None:
    assert read_mined_pairs(tmp_path) is None
    found = MinedPairs((("a", "b"), ("a", "c")), "models:/hapvr/1", 12, 0.95)
    write_mined_pairs(tmp_path, found)
    assert read_mined_pairs(tmp_path) == found
    assert found.summary()["pairs"] == 2
    (tmp_path / MINED_NAME).write_text("{")
    with pytest.raises(DamagedError, match=r"mined_pairs.json is damaged .*start the training again"):
        read_mined_pairs(tmp_path)
