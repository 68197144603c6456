"""Which parts of a candidate are compared, which part of a query is taken, and how much of two
videos segments cover."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from hapvr.errors import VideoError
from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.segments import FrameTimes, Segment
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.compared_parts import Pair, Rows, pairs_of
from hapvr.search.match import Part, coverage, cut, without_repeats
from hapvr.search.scored import ScoredCandidate, stretches_of
from hapvr.search.votes import Candidate, Window


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that are easy to follow."""
    monkeypatch.setattr("hapvr.search.compared_parts.WHOLE_FRAMES", 30)
    monkeypatch.setattr("hapvr.search.compared_parts.PART_FRAMES", 12)


def clock(count: int) -> FrameTimes:
    return FrameTimes(tuple(float(second) for second in range(count)))


def window(query: tuple[float, float], reference: tuple[float, float]) -> Window:
    return Window(
        query_start_s=query[0],
        query_end_s=query[1],
        reference_start_s=reference[0],
        reference_end_s=reference[1],
        votes=1.0,
        num_frames=3,
    )


def pairs_beside(windows: Sequence[Window], *, query: int, video: int) -> list[tuple[Rows, Rows]]:
    """query, video: their numbers of frames, one a second."""
    asked = EmbeddedVideo(torch.zeros(query, 9, 4), clock(query), np.zeros(query, np.uint64))
    candidate = Candidate(video_id="a", votes=1.0, windows=tuple(windows))
    pairs = pairs_of(candidate, clock(video).times_s, query=asked, fps=1.0)
    return [(pair.query, pair.reference) for pair in pairs]


@pytest.mark.parametrize(
    ("windows", "references"),
    [
        ((), [(0, 200)]),  # nobody voted: the whole video
        (
            [window((4, 8), (104, 108))],
            [(99, 111)],
        ),  # ten seconds from 100 on, in whole steps of four frames
        ([window((0, 2), (100, 102))], [(99, 111)]),  # the same offset, voted for by other frames
        ([window((4, 8), (103, 108))], [(98, 110)]),  # as long where votes differ by a second
        ([window((4, 8), (1, 5))], [(0, 12)]),  # as long at the beginning of the video
        ([window((4, 8), (196, 199))], [(188, 200)]),  # and at its end
        ([window((4, 8), (104, 108)), window((5, 9), (20, 24))], [(99, 111), (14, 26)]),
        (
            [window((4, 8), (104, 108)), window((4, 8), (109, 113))],
            [(99, 111)],
        ),  # not what is mostly compared already
        ([window((4, 8), (104, 108)), window((4, 8), (110, 114))], [(99, 111), (105, 117)]),
    ],
)
def test_short_queries_are_compared_whole_with_equal_parts(
    windows: list[Window], references: list[Rows]
) -> None:
    assert pairs_beside(windows, query=10, video=200) == [((0, 10), rows) for rows in references]


@pytest.mark.parametrize(
    ("windows", "pairs"),
    [
        ((), [((0, 90), (0, 500))]),
        ([window((40, 44), (140, 144))], [((36, 48), (136, 148))]),  # at least twelve frames
        ([window((0, 4), (140, 144))], [((0, 12), (140, 152))]),  # where the query begins
        ([window((86, 89), (140, 143))], [((78, 90), (132, 144))]),  # and ends
        ([window((40, 44), (0, 4))], [((36, 48), (0, 12))]),  # where the video begins
        (
            [window((20, 60), (220, 260))],
            [((18, 62), (218, 262))],
        ),  # all that voted, in whole steps of four frames
        (
            [window((20, 60), (220, 260)), window((62, 80), (270, 288))],  # a cut
            [((18, 62), (218, 262)), ((61, 81), (269, 289))],
        ),
        (
            [window((20, 60), (220, 260)), window((20, 60), (20, 60))],  # shown twice in the video
            [((18, 62), (218, 262)), ((18, 62), (18, 62))],
        ),
        ([window((0, 89), (100, 189))], [((0, 90), (99, 191))]),  # the whole query is copied
    ],
)
def test_long_queries_are_compared_by_parts_that_voted(
    windows: list[Window], pairs: list[tuple[Rows, Rows]]
) -> None:
    assert pairs_beside(windows, query=90, video=500) == pairs


def test_short_videos_are_compared_whole_with_short_queries() -> None:
    windows = [window((4, 8), (4, 8))]
    assert pairs_beside(windows, query=14, video=30) == [((0, 14), (0, 30))]
    assert pairs_beside(windows, query=14, video=31) == [((0, 12), (0, 12))]
    assert pairs_beside(windows, query=31, video=8) == [((0, 12), (0, 8))]


def test_segments_are_looked_for_around_the_compared_parts() -> None:
    """As far as a copy at half the speed would go, within the video."""
    numbers = {
        "similarity": 0.5,
        "num_frames": 200,
        "seconds": 200,
    }
    candidate_video = Candidate(video_id="a", votes=1.0, windows=())
    compared = (Pair((0, 10), (2, 12)),)
    score = ScoredCandidate(video_id="a", pairs=compared, candidate=candidate_video, **numbers)
    assert stretches_of(score) == [(0, 17)]
    two = (Pair((20, 32), (100, 112)), Pair((0, 12), (70, 82)))
    assert stretches_of(replace(score, pairs=two)) == [(64, 88), (94, 118)]
    two = (Pair((20, 32), (100, 112)), Pair((0, 12), (80, 92)))
    assert stretches_of(replace(score, pairs=two)) == [(74, 118)]


def test_a_part_keeps_its_times() -> None:
    video = SampledFeatures(
        torch.arange(10.0).view(10, 1, 1), clock(10), np.arange(10, dtype=np.uint64)
    )
    part = cut(video, Part(start_s=2.5, end_s=6), name="q", fps=1.0)
    assert part.clock.times_s == (2, 3, 4, 5)
    assert part.regions.flatten().tolist() == part.hashes.tolist() == [2, 3, 4, 5]
    assert cut(video, Part.named(0, None, None), name="q", fps=1.0).clock.times_s == (0,)
    with pytest.raises(VideoError, match=r"q lasts 10\.0 s and has no frame from 10 s on"):
        cut(video, Part(start_s=10), name="q", fps=1.0)


def segment(query: tuple[float, float], reference: tuple[float, float]) -> Segment:
    return Segment(
        query_start_s=query[0],
        query_end_s=query[1],
        reference_start_s=reference[0],
        reference_end_s=reference[1],
        score=0.9,
    )


@pytest.mark.parametrize(
    ("segments", "kept"),
    [
        pytest.param([((0, 5), (0, 5)), ((5, 10), (0, 5))], [0], id="reference-shown-twice"),
        pytest.param([((0, 5), (0, 5)), ((0, 5), (5, 10))], [0], id="query-shown-twice"),
        pytest.param([((0, 5), (5, 10)), ((5, 10), (0, 5))], [0, 1], id="parts-in-another-order"),
        pytest.param([((0, 6), (0, 6)), ((5, 9), (5, 9))], [0, 1], id="overlap-a-little"),
        pytest.param([((0, 6), (0, 6)), ((7, 9), (2, 6))], [0], id="slowed-down-repeat"),
        pytest.param(
            [((0, 5), (0, 5)), ((5, 9), (1, 5)), ((5, 9), (6, 10))], [0, 2], id="new-after-a-repeat"
        ),
        pytest.param([], [], id="none"),
    ],
)
def test_what_is_shown_once_more_is_left_out(
    segments: list[tuple[tuple[float, float], tuple[float, float]]], kept: list[int]
) -> None:
    parts = [segment(*spans) for spans in segments]
    assert without_repeats(parts) == [parts[number] for number in kept]


def test_coverage_counts_what_overlaps_once() -> None:
    segments = [
        Segment(query_start_s=0, query_end_s=6, reference_start_s=0, reference_end_s=6, score=0.9),
        Segment(
            query_start_s=4, query_end_s=8, reference_start_s=20, reference_end_s=24, score=0.8
        ),
    ]
    assert coverage(segments, query_s=10, reference_s=40) == (0.8, 0.25)
    assert coverage([], query_s=10, reference_s=40) == (0, 0)
