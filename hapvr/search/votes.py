"""From frame hits to candidate videos: votes over (video, time offset), as in copy detection since
Douze et al. (2010).

A hit says that a query frame at time t looks like a frame of a video at time t', so it votes for
the offset t' - t of that video. Frames of a copy agree on one offset; look-alikes scatter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Table = dict[str, npt.NDArray[Any]]
"""Columns of one length by name. Polars would do as well, and is larger than all that scoring
needs."""

GAP_COST = 0.25
"""What a looked-up query frame that does not vote takes from a stretch, in mean votes of those that
do: a single vote far away from the others would make a short copy a long one."""
HITS_PER_VIDEO = 3
"""How many hits in one video may vote per query frame: still pictures have many equal frames."""
MAX_WINDOWS = 3
"""Places of a video that are compared with the query."""
MIN_VOTE = 1e-6
"""Votes of less weight are not counted: they come from rounding."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """Where a candidate may show what the query shows, in seconds from each video's first frame.
    votes: sum of the weights of the query frames that agree on the offset, >= 0. num_frames: how
    many these are. Start and end: of the stretch in which they are dense."""

    query_start_s: float
    query_end_s: float
    reference_start_s: float
    reference_end_s: float
    votes: float
    num_frames: int

    @property
    def offset_s(self) -> float:
        """Time in the reference less time in the query."""
        return (
            self.reference_start_s + self.reference_end_s - self.query_start_s - self.query_end_s
        ) / 2


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A video to be looked at closely. votes: of its best window. windows: best first; none where
    no frame voted. num_voting: query frames that vote for the best window, of num_asked that were
    looked up."""

    video_id: str
    votes: float
    windows: tuple[Window, ...]
    num_voting: int = 0
    num_asked: int = 0


def vote(
    hits: pa.Table,
    times_s: npt.ArrayLike,
    *,
    num_videos: int,
    tolerance_s: float,
    num_hits: int,
    max_candidates: int,
    allowed: Callable[[str], bool] | None = None,
) -> list[Candidate]:
    """Candidates with the most votes, best first.

    hits: columns query_frame, video_id, second, similarity, as an index gives them. times_s: [Q],
    when each of the looked-up vectors is shown in the query; those of one time are one frame.
    num_videos: in the index. tolerance_s: by how much the offsets of one copy may differ. num_hits:
    how many hits the index was asked for per query frame. allowed: which videos may be candidates,
    None: all; the others still say what a hit is worth.

    A hit weighs (s - s_k) * idf, at least 0. s_k is the similarity of the query frame's last hit,
    which tells what unrelated frames reach (0 where the index had no more frames to give); it makes
    frames that look like everything worth nothing. idf = log((1 + N) / n) / log(1 + N) is the
    inverse video frequency: n of the N videos share the frame, each counted by its best hit against
    the best of all. A query frame votes once for an offset."""
    times = np.asarray(times_s, np.float64)
    if not len(hits):
        return []
    names, weighted = _weighted(hits, times, num_hits=num_hits, num_videos=num_videos)
    weighted = _strongest(weighted, HITS_PER_VIDEO, "query_frame", "video")
    if allowed is not None:
        is_allowed = np.array([allowed(name) for name in names], bool)
        weighted = _take(weighted, is_allowed[weighted["video"]])

    bins = _bins_of(weighted, times, tolerance_s=tolerance_s)
    best = np.zeros(len(names))
    np.maximum.at(best, bins.video, bins.votes)
    voted = np.flatnonzero(best).tolist()
    voted.sort(key=lambda video: (-best[video], names[video]))
    windows_of = _windows_of(bins, voted[:max_candidates])
    return [
        Candidate(
            video_id=names[video],
            votes=float(best[video]),
            windows=tuple(windows),
            num_voting=windows[0].num_frames,
        )
        for video, windows in windows_of.items()
    ]


@dataclass(frozen=True)
class _Bins:
    """Votes for one offset of one video each."""

    rows: Table
    """of all votes, a query frame once for each bin, in the order of the bins and of time"""
    firsts: npt.NDArray[np.intp]
    """[B], the first row of each bin"""
    video: npt.NDArray[Any]
    """[B]"""
    votes: npt.NDArray[np.float64]
    """[B], sum of the weights"""

    def of(self, number: int) -> Table:
        """The rows of a bin."""
        is_last = number + 1 == len(self.firsts)
        end = len(self.rows["weight"]) if is_last else self.firsts[number + 1]
        return _take(self.rows, slice(self.firsts[number], end))


def _bins_of(weighted: Table, times: npt.NDArray[np.float64], *, tolerance_s: float) -> _Bins:
    """Bins are twice the tolerance wide and overlap by half, so that some bin holds any offsets
    that differ by the tolerance."""
    num_votes = len(weighted["weight"])
    twice = _take(weighted, np.tile(np.arange(num_votes), 2))
    twice["shift"] = np.repeat([0.0, 0.5], num_votes)
    twice["bin"] = np.floor((twice["second"] - twice["time"]) / (2 * tolerance_s) + twice["shift"])
    rows = _strongest(twice, 1, "video", "shift", "bin", "time")
    # among the times that were looked up
    rows["place"] = np.searchsorted(np.unique(times), rows["time"])
    firsts = _starts(rows, "video", "shift", "bin")
    return _Bins(rows, firsts, rows["video"][firsts], np.add.reduceat(rows["weight"], firsts))


def _windows_of(bins: _Bins, videos: Sequence[int]) -> dict[int, list[Window]]:
    """The best windows of each of the videos, at most MAX_WINDOWS, none within another."""
    windows_of: dict[int, list[Window]] = {video: [] for video in videos}
    firsts = bins.firsts
    order = np.lexsort((bins.rows["bin"][firsts], bins.rows["shift"][firsts], -bins.votes))
    for number in order[np.isin(bins.video[order], videos)].tolist():
        windows = windows_of[int(bins.video[number])]
        if len(windows) == MAX_WINDOWS:
            continue
        window = _window(bins.of(number), float(bins.votes[number]))
        if not any(_within(window, better) for better in windows):
            windows.append(window)

    return windows_of


def with_others(
    voted: Sequence[Candidate], others: Sequence[str], *, max_candidates: int
) -> list[Candidate]:
    """Candidates by votes, and then other videos that no frame voted for, at most
    `max_candidates`."""
    are_voted = {candidate.video_id for candidate in voted}
    unvoted = [
        Candidate(video_id=name, votes=0.0, windows=()) for name in others if name not in are_voted
    ]
    return [*voted, *unvoted][:max_candidates]


def _weighted(
    hits: pa.Table, times: npt.NDArray[np.float64], *, num_videos: int, num_hits: int
) -> tuple[list[str], Table]:
    """Names of the videos; columns query_frame, time, video (a place among the names), second and
    weight > 0 of the hits that count."""
    coded = hits["video_id"].combine_chunks().dictionary_encode()
    frame = hits["query_frame"].to_numpy()
    similarity = hits["similarity"].to_numpy().astype(np.float64)
    least = np.full(len(times), np.inf)
    np.minimum.at(least, frame, similarity)
    least[np.bincount(frame, minlength=len(times)) < num_hits] = 0
    table = {
        "query_frame": frame,
        "time": times[frame],
        "video": coded.indices.to_numpy(),
        "second": hits["second"].to_numpy().astype(np.float64),
        "weight": (similarity - least[frame]).clip(0),
    }
    table = _take(table, table["weight"] > MIN_VOTE)
    by_video = _strongest(table, 1, "query_frame", "video")
    most = np.full(len(times), MIN_VOTE)
    np.maximum.at(most, by_video["query_frame"], by_video["weight"])
    shared = np.bincount(by_video["query_frame"], by_video["weight"], minlength=len(times)) / most
    total = np.log1p(max(num_videos, 1))
    rarity = (total - np.log(shared[table["query_frame"]])) / total
    table["weight"] = table["weight"] * rarity.clip(0, 1)
    return coded.dictionary.to_pylist(), _take(table, table["weight"] > MIN_VOTE)


def _window(rows: Table, votes: float) -> Window:
    """The stretch of a bin with the most votes, less GAP_COST mean votes for each looked-up frame
    without one. rows: of the bin, in order of time; few, so that lists are faster than arrays."""
    times = rows["time"].tolist()
    seconds = rows["second"].tolist()
    weights = rows["weight"].tolist()
    places = rows["place"].tolist()
    cost = GAP_COST * votes / len(times)
    before = places[0] - 1
    most = -np.inf
    total = 0.0
    start = 0
    first = 0
    last = 0
    for number, (weight, place) in enumerate(zip(weights, places, strict=True)):
        total -= cost * (place - before - 1)
        before = place
        if total <= 0:
            total = 0.0
            start = number

        total += weight
        if total > most:
            most = total
            first = start
            last = number

    return Window(
        query_start_s=times[first],
        query_end_s=times[last],
        reference_start_s=min(seconds[first : last + 1]),
        reference_end_s=max(seconds[first : last + 1]),
        votes=votes,
        num_frames=len(times),
    )


def _take(table: Table, rows: npt.NDArray[Any] | slice) -> Table:
    """Some rows, by a mask, by their places or as a slice."""
    return {name: column[rows] for name, column in table.items()}


def _strongest(table: Table, count: int, *keys: str) -> Table:
    """The `count` rows of greatest weight among those that agree in all keys, ordered by the
    keys."""
    last_key_first = [table[key] for key in reversed(keys)]
    table = _take(table, np.lexsort([-table["weight"], *last_key_first]))
    starts = _starts(table, *keys)
    number = np.arange(len(table["weight"]))
    first_that_agrees = np.repeat(starts, np.diff(starts, append=len(number)))
    return _take(table, number - first_that_agrees < count)


def _starts(table: Table, *keys: str) -> npt.NDArray[np.intp]:
    """Where rows that agree in all keys begin, of a table that is ordered by them."""
    differs = np.ones(len(table[keys[0]]), bool)
    differs[1:] = np.any([table[key][1:] != table[key][:-1] for key in keys], axis=0)
    return np.flatnonzero(differs)


def _within(window: Window, other: Window) -> bool:
    return (
        other.query_start_s <= window.query_start_s
        and window.query_end_s <= other.query_end_s
        and other.reference_start_s <= window.reference_start_s
        and window.reference_end_s <= other.reference_end_s
    )
