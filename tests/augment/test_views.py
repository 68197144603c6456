"""Temporal augmentations on frame indices."""

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hapvr.augment import views
from hapvr.augment.views import (
    BLANK,
    NOISE,
    crop_or_loop,
    draw_temporal,
    draw_window,
    shuffle_dropout,
)


@given(num_available=st.integers(1, 300), num_frames=st.integers(1, 40), seed=st.integers(0, 99))
def test_draw_window_lies_inside_the_video(num_available, num_frames, seed):
    """Consecutive frames, twice the clip's length; a shorter video is repeated from its first frame
    on."""
    window = draw_window(num_available, num_frames=num_frames, rng=np.random.default_rng(seed))
    length = min(num_available, 2 * num_frames)
    assert len(window) == 2 * num_frames
    assert (np.diff(window[:length]) == 1).all()
    assert window.tolist() == np.resize(window[:length], 2 * num_frames).tolist()
    assert window.min() >= 0
    assert window.max() < num_available


@given(num_available=st.integers(1, 300), num_frames=st.integers(1, 40), count=st.integers(1, 6))
def test_draw_window_starts_in_its_part_of_the_video(num_available, num_frames, count):
    """Windows of all parts are in order, and together they can start anywhere."""
    starts = []
    for number in range(count):
        rngs = (np.random.default_rng(seed) for seed in range(40))
        parts = {"num_frames": num_frames, "part": (number, count)}
        starts.append({int(draw_window(num_available, rng=one, **parts)[0]) for one in rngs})

    last = max(0, num_available - 2 * num_frames)
    assert all(
        min(later) >= max(earlier) for earlier, later in itertools.pairwise(starts) if last >= count
    )
    assert all(0 <= start <= last for part in starts for start in part)
    if last < 4:
        assert set().union(*starts) == set(range(last + 1))


@given(
    indices=st.lists(st.integers(-2, 50), min_size=1, max_size=60).filter(
        lambda values: max(values) >= 0
    ),
    num_frames=st.integers(1, 30),
    seed=st.integers(0, 9),
)
def test_crop_or_loop_gives_a_stretch_with_real_frames(indices, num_frames, seed):
    """Long enough input is cut, short input repeated; a real frame is always in it."""
    clip = crop_or_loop(
        np.array(indices), num_frames=num_frames, rng=np.random.default_rng(seed)
    ).tolist()
    assert len(clip) == num_frames
    if len(indices) > num_frames:
        assert any(indices[start : start + num_frames] == clip for start in range(len(indices)))
        assert max(clip) >= 0
    else:
        assert clip == (indices * num_frames)[:num_frames]


def segments(indices):
    """Cut where an index does not follow the one before."""
    cuts = np.flatnonzero(np.diff(indices) != 1) + 1
    return [part.tolist() for part in np.split(indices, cuts)]


def test_shuffle_dropout_without_dropping_reorders_segments():
    """All frames are there, in segments of at least four but for the last."""
    window = np.arange(56)
    result = shuffle_dropout(
        window, max_segment_frames=14, rng=np.random.default_rng(0), shuffled=1, dropped=0
    )
    assert sorted(result) == window.tolist()
    parts = segments(result)
    assert len(parts) > 2
    assert sorted(map(len, parts))[1] >= 4


def test_shuffle_dropout_without_shuffling_keeps_the_order():
    """Dropped segments are cut out or replaced; what stays is in order, and something always
    stays."""
    kinds = set()
    for seed in range(50):
        window = np.arange(56)
        result = shuffle_dropout(
            window, max_segment_frames=14, rng=np.random.default_rng(seed), shuffled=0, dropped=1
        )
        real = result[result >= 0]
        assert 1 <= len(real) <= 14
        assert (np.diff(real) == 1).all()
        kinds |= set(result[result < 0].tolist())

    assert kinds == {BLANK, NOISE}


@pytest.mark.parametrize(("segment_length", "one_length"), [("each", False), ("once", True)])
def test_segments_have_one_length_or_each_its_own(segment_length, one_length):
    """S2VS 3.2 draws a length for each segment, its Figure 7 one for the clip; the last segment is
    what is left."""
    for seed in range(20):
        parts = views._cut(
            np.arange(80), max_frames=14, rng=np.random.default_rng(seed), once=one_length
        )
        assert np.concatenate(parts).tolist() == list(range(80))
        lengths = [len(part) for part in parts[:-1]]
        assert all(4 <= length <= 14 for length in lengths)
        assert len(parts[-1]) <= 14
        assert (len(set(lengths)) == 1) == one_length


@given(num_available=st.integers(1, 100), num_frames=st.integers(1, 30), seed=st.integers(0, 500))
def test_draw_temporal_gives_full_clips_of_the_window(num_available, num_frames, seed):
    """Whatever is drawn, the clip is full, comes from the window, and shows some of it."""
    rng = np.random.default_rng(seed)
    window = draw_window(num_available, num_frames=num_frames, rng=rng)
    clip = draw_temporal(window, num_frames=num_frames, rng=rng)
    assert len(clip) == num_frames
    assert set(clip.tolist()) <= {*window.tolist(), BLANK, NOISE}
    assert (clip >= 0).any()


def test_draw_temporal_draws_each_augmentation_at_its_rate(monkeypatch):
    """At most one for a clip, and each as often as in S2VS."""
    drawn = []
    monkeypatch.setattr(views, "_augment", lambda name, window, **_: drawn.append(name) or window)
    for seed in range(400):
        draw_temporal(np.arange(16), num_frames=8, rng=np.random.default_rng(seed))
    rates = {name: drawn.count(name) / 400 for name in views.PROBABILITIES}
    assert rates == pytest.approx(views.PROBABILITIES, abs=0.07)


def test_each_augmentation_by_hand():
    """Faster, slower, backwards, and with one frame that stands still for a while."""
    window = np.arange(10, 26)

    def augmented(name):
        return views._augment(name, window, num_frames=8, rng=np.random.default_rng(0)).tolist()

    assert augmented("fast_forward") in [window[::rate].tolist() for rate in (2, 3, 4)]
    assert augmented("slow_motion")[:4] == [10, 10, 11, 11]
    assert augmented("reverse") == window[::-1].tolist()
    paused = augmented("pause")
    assert sorted(set(paused)) == list(range(paused[0], paused[0] + 8))
    assert len(paused) == 12
