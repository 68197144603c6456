"""Votes over offsets, on hits that an exact search of synthetic descriptors gives."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from hapvr.search.votes import Candidate, vote, with_others
from hapvr.seeding import numpy_rng

DIMS = 32
NUM_HITS = 40


def unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def random_video(seed: int, num_frames: int = 60) -> np.ndarray:
    """Frames that change slowly, as those of videos do, [T, D]."""
    steps = numpy_rng(seed, "votes").normal(size=(num_frames, DIMS))
    return unit(np.cumsum(steps, axis=0) / np.sqrt(np.arange(1, num_frames + 1))[:, None] + steps)


def exact_hits(query: np.ndarray, videos: dict[str, np.ndarray], k: int = NUM_HITS) -> pa.Table:
    """The k frames of all videos that are nearest to each query frame; a frame is one second."""
    names = [name for name, frames in videos.items() for _ in frames]
    seconds = np.concatenate([np.arange(len(frames)) for frames in videos.values()])
    similarity = query @ np.concatenate(list(videos.values())).T
    order = np.argsort(-similarity, axis=1)[:, :k]
    frame = np.repeat(np.arange(len(query)), order.shape[1])
    return pa.table(
        {
            "query_frame": pa.array(frame, pa.int32()),
            "video_id": [names[row] for row in order.ravel()],
            "second": pa.array(seconds[order.ravel()], pa.float32()),
            "similarity": pa.array(np.take_along_axis(similarity, order, 1).ravel(), pa.float32()),
        }
    )


def candidates(query: np.ndarray, videos: dict[str, np.ndarray]) -> list[Candidate]:
    hits = exact_hits(query, videos)
    times = np.arange(len(query))
    return vote(
        hits, times, num_videos=len(videos), num_hits=NUM_HITS, tolerance_s=1.0, max_candidates=20
    )


@pytest.fixture(scope="module")
def collection() -> dict[str, np.ndarray]:
    return {f"in/{number:02d}.mp4": random_video(number) for number in range(30)}


@pytest.mark.parametrize(("first", "length"), [(0, 60), (20, 10), (45, 3)])
def test_a_noisy_copy_is_found_where_it_lies(
    collection: dict[str, np.ndarray], first: int, length: int
) -> None:
    """The right video, the right seconds of both sides."""
    original = collection["in/07.mp4"][first : first + length]
    noise = numpy_rng(1, "noise").normal(size=original.shape) * 0.05
    query = np.concatenate([random_video(900, 4), unit(original + noise), random_video(901, 4)])
    best = candidates(query, collection)[0]
    assert best.video_id == "in/07.mp4"
    window = best.windows[0]
    assert abs(window.offset_s - (first - 4)) <= 1
    assert abs(window.reference_start_s - first) <= 2
    assert abs(window.reference_end_s - (first + length - 1)) <= 2
    assert window.num_frames >= length


def test_two_places_of_one_video_are_two_windows(collection: dict[str, np.ndarray]) -> None:
    """A scene that a video repeats is offered at both places."""
    twice = dict(collection)
    scene = random_video(500, 10)
    twice["in/07.mp4"] = np.concatenate(
        [collection["in/07.mp4"], scene, random_video(501, 30), scene]
    )
    best = candidates(scene, twice)[0]
    assert best.video_id == "in/07.mp4"
    assert {round(window.offset_s) for window in best.windows[:2]} == {60, 100}


def test_what_all_videos_share_does_not_decide(collection: dict[str, np.ndarray]) -> None:
    """Eight seconds of an intro that 25 videos begin with weigh less than three seconds that one
    video has."""
    intro = random_video(700, 8)
    scene = random_video(701, 3)
    videos = {
        name: np.concatenate([intro, frames]) if number < 25 else np.concatenate([frames, scene])
        for number, (name, frames) in enumerate(collection.items())
        if number < 26
    }
    ranking = candidates(np.concatenate([intro, scene]), videos)
    assert ranking[0].video_id == "in/25.mp4"


def test_a_frozen_picture_gets_one_vote_per_query_frame(collection: dict[str, np.ndarray]) -> None:
    """A video that shows one picture for a minute does not win by its number of equal frames."""
    copy = collection["in/03.mp4"][10:20]
    frozen = dict(collection) | {"in/frozen.mp4": np.repeat(unit(copy[:1] + 0.05), 60, axis=0)}
    ranking = candidates(copy, frozen)
    assert ranking[0].video_id == "in/03.mp4"
    frozen_votes = [one.votes for one in ranking if one.video_id == "in/frozen.mp4"]
    assert not frozen_votes or frozen_votes[0] < ranking[0].votes / 2


@given(seed=st.integers(0, 10_000), num_frames=st.integers(1, 20))
def test_votes_do_not_depend_on_the_order_of_hits(seed: int, num_frames: int) -> None:
    """An index may give its hits in any order; candidates are ranked and hold one entry per
    video."""
    videos = {f"in/{number}.mp4": random_video(seed + number, 12) for number in range(6)}
    hits = exact_hits(random_video(seed + 99, num_frames), videos)
    shuffled = hits.take(numpy_rng(seed, "shuffle").permutation(len(hits)))
    first = vote(
        hits,
        np.arange(num_frames),
        num_videos=6,
        tolerance_s=1.0,
        num_hits=NUM_HITS,
        max_candidates=5,
    )
    second = vote(
        shuffled,
        np.arange(num_frames),
        num_videos=6,
        tolerance_s=1.0,
        num_hits=NUM_HITS,
        max_candidates=5,
    )
    assert [one.video_id for one in first] == [one.video_id for one in second]
    assert np.allclose([one.votes for one in first], [one.votes for one in second])
    assert len({one.video_id for one in first}) == len(first) <= 5
    assert all(one.votes >= other.votes for one, other in itertools.pairwise(first))


def test_videos_without_votes_come_last() -> None:
    """Each video once, and no more than asked for."""
    voted = [Candidate(video_id=name, votes=1.0, windows=()) for name in "abc"]
    candidates = with_others(voted, ["x", "a", "y"], max_candidates=4)
    assert [candidate.video_id for candidate in candidates] == ["a", "b", "c", "x"]
    assert [candidate.votes for candidate in candidates] == [1, 1, 1, 0]
