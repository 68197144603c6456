"""From frame hits to candidate videos: votes over (video, time offset), as in copy detection since Douze et al. (2010).

A hit says that a query frame at time t looks like a frame of a video at time t', so it votes for the offset t' - t of
that video. Frames of a copy agree on one offset; look-alikes scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import ArrayLike

from hapvr.errors import ArgumentError

MIN_VOTE = 1e-6
"""Votes of less weight are not counted: they come from rounding."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """Where a candidate may show what the query shows, in seconds from each video's first frame.

    votes: sum of the weights of the query frames that agree on the offset, >= 0. num_frames: how many these are.
    """

    query_start_s: float
    query_end_s: float
    reference_start_s: float
    reference_end_s: float
    votes: float
    num_frames: int

    @property
    def offset_s(self) -> float:
        """Time in the reference less time in the query."""
        return (self.reference_start_s + self.reference_end_s - self.query_start_s - self.query_end_s) / 2


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A video to be looked at closely. votes: of its best window. windows: best first; none if only the whole video hit."""

    video_id: str
    votes: float
    windows: tuple[Window, ...]


def vote(
    hits: pa.Table,
    times_s: ArrayLike,
    *,
    num_videos: int,
    tolerance_s: float,
    num_hits: int,
    hits_per_video: int,
    max_windows: int,
    max_candidates: int,
    floor: bool = True,
    rarity: bool = True,
    allowed: Callable[[str], bool] | None = None,
) -> list[Candidate]:
    """Candidates with the most votes, best first.

    hits: columns query_frame, video_id, second, similarity, as an index gives them. times_s: [Q], when each of
    the looked-up vectors is shown in the query; those of one time are one frame.
    num_videos: in the index. tolerance_s: by how much the offsets of one copy may differ. num_hits: how many hits the
    index was asked for per query frame. hits_per_video: of one query frame, the best ones. max_windows: per video.
    allowed: which videos may be candidates, None: all; the others still say what a hit is worth.

    floor, rarity: whether s_k and idf count.

    A hit weighs (s - s_k) * idf, at least 0. s_k is the similarity of the query frame's last hit, which tells what
    unrelated frames reach (0 where the index had no more frames to give); it makes frames that look like everything
    worth nothing. idf = log((1 + N) / n) / log(1 + N) is the inverse video frequency: n of the N videos share the frame,
    each counted by its best hit against the best of all. A query frame votes once for an offset.
    """
    times = np.asarray(times_s, np.float64)
    if tolerance_s <= 0:
        raise ArgumentError(f"tolerance_s is {tolerance_s}; wanted seconds above 0")
    if not len(hits):
        return []
    weighted = _weighted(hits, num_hits=num_hits, num_videos=num_videos, floor=floor, rarity=rarity)
    rank = pl.col("weight").rank("ordinal", descending=True).over("query_frame", "video_id")
    weighted = weighted.filter(rank <= hits_per_video)
    if allowed is not None:
        weighted = weighted.filter(pl.Series([allowed(name) for name in weighted["video_id"]], dtype=pl.Boolean))
    frame = weighted["query_frame"].to_numpy()
    weighted = weighted.with_columns(time=pl.Series(times[frame]), offset=weighted["second"] - pl.Series(times[frame]))
    peaks = _peaks(weighted, tolerance_s=tolerance_s)
    best = peaks.group_by("video_id").agg(pl.col("votes").max()).sort("votes", "video_id", descending=[True, False])
    chosen = best.head(max_candidates)
    windows = _windows(peaks.join(chosen.select("video_id"), on="video_id", how="semi"), max_windows=max_windows)
    return [
        Candidate(video_id=video_id, votes=votes, windows=tuple(windows[video_id]))
        for video_id, votes in chosen.iter_rows()
    ]


def unite(voted: Sequence[Candidate], whole_videos: Sequence[str], *, max_candidates: int) -> list[Candidate]:
    """Candidates by votes and by whole videos, at most `max_candidates`: one of each list in turn, each video once."""
    known = {candidate.video_id: candidate for candidate in voted}
    order: dict[str, None] = {}
    for place in range(max(len(voted), len(whole_videos))):
        order |= {one.video_id: None for one in voted[place : place + 1]}
        order |= dict.fromkeys(whole_videos[place : place + 1])
    return [
        known.get(video_id) or Candidate(video_id=video_id, votes=0.0, windows=())
        for video_id in list(order)[:max_candidates]
    ]


def _weighted(hits: pa.Table, *, num_videos: int, num_hits: int, floor: bool, rarity: bool) -> pl.DataFrame:
    """Columns query_frame, video_id, second and weight > 0 of the hits that count."""
    table = pl.from_arrow(hits)
    assert isinstance(table, pl.DataFrame)
    whole = pl.len().over("query_frame") >= num_hits
    least = pl.when(whole).then(pl.col("similarity").min().over("query_frame")).otherwise(0.0) if floor else pl.lit(0.0)
    gained = table.select(
        "query_frame",
        "video_id",
        pl.col("second").cast(pl.Float64),
        gain=(pl.col("similarity").cast(pl.Float64) - least).clip(lower_bound=0),
    ).filter(pl.col("gain") > MIN_VOTE)
    by_video = gained.group_by("query_frame", "video_id").agg(pl.col("gain").max())
    shared = by_video.group_by("query_frame").agg(n=pl.col("gain").sum() / pl.col("gain").max())
    total = float(np.log1p(max(num_videos, 1)))
    idf = ((total - pl.col("n").log()) / total).clip(0, 1) if rarity else pl.lit(1.0)
    return (
        gained.join(shared, on="query_frame")
        .with_columns(weight=pl.col("gain") * idf)
        .filter(pl.col("weight") > MIN_VOTE)
        .select("query_frame", "video_id", "second", "weight")
    )


def _peaks(weighted: pl.DataFrame, *, tolerance_s: float) -> pl.DataFrame:
    """Bins of offsets with their votes. Bins are twice the tolerance wide and overlap by half, so that some bin holds any
    set of offsets that differ by the tolerance."""
    bins = [
        weighted.with_columns(bin=(pl.col("offset") / (2 * tolerance_s) + shift).floor().cast(pl.Int64), shift=shift)
        for shift in (0.0, 0.5)
    ]
    strongest = pl.col("weight").arg_max()
    once = (
        pl.concat(bins)
        .group_by("video_id", "shift", "bin", "time")
        .agg(pl.col("weight").max(), pl.col("second").gather(strongest).first())
    )
    return once.group_by("video_id", "shift", "bin").agg(
        votes=pl.col("weight").sum(),
        num_frames=pl.len(),
        query_start=pl.col("time").min(),
        query_end=pl.col("time").max(),
        reference_start=pl.col("second").min(),
        reference_end=pl.col("second").max(),
    )


def _windows(peaks: pl.DataFrame, *, max_windows: int) -> dict[str, list[Window]]:
    """The best windows of each video that do not lie within a better one."""
    found: dict[str, list[Window]] = {}
    for row in peaks.sort("votes", "shift", "bin", descending=[True, False, False]).iter_rows(named=True):
        windows = found.setdefault(row["video_id"], [])
        window = Window(
            query_start_s=row["query_start"],
            query_end_s=row["query_end"],
            reference_start_s=row["reference_start"],
            reference_end_s=row["reference_end"],
            votes=row["votes"],
            num_frames=row["num_frames"],
        )
        if len(windows) < max_windows and not any(_within(window, better) for better in windows):
            windows.append(window)
    return found


def _within(window: Window, other: Window) -> bool:
    return (
        other.query_start_s <= window.query_start_s
        and window.query_end_s <= other.query_end_s
        and other.reference_start_s <= window.reference_start_s
        and window.reference_end_s <= other.reference_end_s
    )
