"""What the benchmark of the index at size draws and counts."""

from pathlib import Path

import numpy as np
import pytest

from bench.drawn_videos import REAL_RATE, DrawnVideos, stored
from bench.index_size import exhaustive, shortlist, trial_of
from hapvr.scorer.blank import unit
from hapvr.seeding import numpy_rng

DIMS = 16
FRAMES = 4
VIDEOS = 60


@pytest.fixture
def drawn() -> DrawnVideos:
    rng = numpy_rng(0, "clips")
    clips = unit(rng.standard_normal((3, FRAMES, DIMS), np.float32))
    return DrawnVideos(clips, clips.mean(axis=(0, 1)), np.eye(DIMS, dtype=np.float32))


def test_a_tenth_of_the_drawn_videos_are_real_clips(drawn: DrawnVideos) -> None:
    vectors, clip_of = drawn.draw(0, VIDEOS)
    real = np.flatnonzero(clip_of >= 0)
    assert real.tolist() == list(range(0, VIDEOS, REAL_RATE))
    cosines = (vectors[real] * drawn.clips[clip_of[real]]).sum(axis=-1)
    assert cosines.min() > 0.85


def test_exhaustive_search_has_a_recall_of_one(drawn: DrawnVideos, tmp_path: Path) -> None:
    videos = stored(drawn, tmp_path / "vectors.npy", VIDEOS)
    trial = trial_of(drawn, videos, 6)
    rows = trial.run(
        lambda query: exhaustive(videos, [query])[0],
        [1],
    )
    assert rows["copies"] == 1
    assert rows["overlap"] == 1
    names = shortlist(exhaustive(videos, [videos.vectors[7].astype(np.float32)])[0], VIDEOS, FRAMES)
    assert names[0] == "drawn/00000007"
