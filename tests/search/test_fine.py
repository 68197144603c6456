"""Which parts of a candidate are compared, which part of a query is taken, and how much of two videos segments cover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from hapvr.errors import VideoError
from hapvr.scorer.scorer import EmbeddedVideo
from hapvr.scorer.segments import Clock, Segment
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.fine import FineScore, pieces_of, stretch_of
from hapvr.search.match import coverage
from hapvr.search.query import Part, cut
from hapvr.search.settings import SearchSettings
from hapvr.search.votes import Candidate, Window

SETTINGS = SearchSettings(whole_frames=30, margin_s=5)


def clock(count: int) -> Clock:
    return Clock(tuple(float(second) for second in range(count)))


def window(query: tuple[float, float], reference: tuple[float, float]) -> Window:
    return Window(
        query_start_s=query[0],
        query_end_s=query[1],
        reference_start_s=reference[0],
        reference_end_s=reference[1],
        votes=1.0,
        num_frames=3,
    )


def pieces_beside(windows: Sequence[Window], *, query: int, video: int) -> list[tuple[int, int]]:
    """query, video: their numbers of frames, one a second."""
    asked = EmbeddedVideo(torch.zeros(query, 9, 4), clock(query))
    candidate = Candidate(video_id="a", votes=1.0, windows=tuple(windows))
    return pieces_of(candidate, clock(video).times_s, query=asked, settings=SETTINGS, fps=1.0)


@pytest.mark.parametrize(
    ("windows", "pieces"),
    [
        ((), [(0, 200)]),  # nobody voted: the whole video
        ([window((4, 8), (104, 108))], [(99, 115)]),  # 14 seconds from 100 on, in whole steps of four frames
        ([window((0, 2), (100, 102))], [(99, 115)]),  # the same offset, voted for by other frames
        ([window((4, 8), (103, 108))], [(98, 114)]),  # as long where votes differ by a second
        ([window((4, 8), (1, 5))], [(0, 16)]),  # as long at the beginning of the video
        ([window((4, 8), (196, 199))], [(184, 200)]),  # and at its end
        ([window((4, 8), (104, 108)), window((5, 9), (20, 24))], [(99, 115), (14, 30)]),
        ([window((4, 8), (104, 108)), window((4, 8), (111, 115))], [(99, 115)]),  # not what is mostly compared already
        ([window((4, 8), (104, 108)), window((4, 8), (112, 116))], [(99, 115), (107, 123)]),
    ],
)
def test_long_videos_are_compared_by_windows_of_one_length(
    windows: list[Window], pieces: list[tuple[int, int]]
) -> None:
    assert pieces_beside(windows, query=14, video=200) == pieces


@pytest.mark.parametrize(
    ("windows", "pieces"),
    [
        ([window((40, 44), (140, 144))], [(134, 151)]),  # five seconds before and after the votes
        ([window((20, 60), (220, 260)), window((62, 80), (270, 288))], [(214, 295)]),  # a cut: both sides are one
        ([window((20, 60), (220, 260)), window((20, 30), (20, 30))], [(14, 37), (214, 267)]),
    ],
)
def test_long_queries_are_compared_with_what_is_around_the_votes(
    windows: list[Window], pieces: list[tuple[int, int]]
) -> None:
    assert pieces_beside(windows, query=90, video=500) == pieces


def test_segments_are_looked_for_around_the_scored_piece() -> None:
    """As far as a copy at half the speed would go, within the video."""
    score = FineScore(video_id="a", similarity=0.5, rows=(2, 12), num_frames=200, seconds=200)
    assert stretch_of(score) == (0, 17)
    assert stretch_of(replace(score, rows=(100, 112))) == (94, 118)


def test_short_videos_are_compared_whole() -> None:
    assert pieces_beside([window((4, 8), (4, 8))], query=14, video=30) == [(0, 30)]


def test_a_part_keeps_its_times() -> None:
    video = SampledFeatures(torch.arange(10.0).view(10, 1, 1), clock(10))
    part = cut(video, Part(start_s=2.5, end_s=6), name="q", fps=1.0)
    assert part.clock.times_s == (2, 3, 4, 5)
    assert part.regions.flatten().tolist() == [2, 3, 4, 5]
    assert cut(video, Part.around(0), name="q", fps=1.0).clock.times_s == (0,)
    with pytest.raises(VideoError, match=r"q lasts 10\.0 s and has no frame from 10 s on"):
        cut(video, Part(start_s=10), name="q", fps=1.0)


def test_coverage_counts_what_overlaps_once() -> None:
    segments = [
        Segment(query_start_s=0, query_end_s=6, reference_start_s=0, reference_end_s=6, score=0.9),
        Segment(query_start_s=4, query_end_s=8, reference_start_s=20, reference_end_s=24, score=0.8),
    ]
    assert coverage(segments, query_s=10, reference_s=40) == (0.8, 0.25)
    assert coverage([], query_s=10, reference_s=40) == (0, 0)
