"""The hashes of frames, looked up exactly by Hamming distance."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hapvr.video.frames import NO_HASH, Hashes

VIDEO_ID, SECOND = (
    pa.field("video_id", pa.string(), nullable=False),
    pa.field("second", pa.float32(), nullable=False),
)
FOUND_FRAMES = pa.schema(
    [("query_frame", pa.int32()), VIDEO_ID, SECOND, ("similarity", pa.float32())]
)
"""What look-ups of frames give: the number of the query frame, and a frame of a video."""

RADIUS = 10
"""Bits by which frames of one picture may differ. Of real clips, one of 70,000 pairs of frames of
two videos is as near: of one scene."""
PARTS = 4
PART_BITS = 16
MAX_COMPARED = 1 << 22
"""Comparisons in memory together."""

_NEAR = np.flatnonzero(np.bitwise_count(np.arange(1 << PART_BITS)) <= RADIUS // PARTS).astype(
    np.uint16
)
"""What turns a part into all parts that differ in few enough bits."""


class HashIndex:
    """The hashes of some frames, looked up exactly by Hamming distance. Any thread may search it.

    Multi-index hashing (Norouzi, Punjani and Fleet, "Fast search in Hamming space with multi-index
    hashing", CVPR 2012): of two hashes that differ in at most RADIUS bits, one of four parts
    differs in at most a quarter of that, so only frames with such a part are compared."""

    def __init__(self, frames: pa.Table) -> None:
        """frames: columns video_id, second and hash, those of a video contiguous; those without a
        hash are never found."""
        hashes = frames["hash"].to_numpy()
        self._frames, self._hashes = frames.select(["video_id", "second"]), hashes
        self._places: dict[str, tuple[int, int]] = {}
        """First and last + 1 row of each video."""
        first = start = 0
        for chunk in frames["video_id"].chunks:
            runs = pc.run_end_encode(chunk)
            for name, last in zip(
                runs.values.to_pylist(), (start + runs.run_ends.to_numpy()).tolist(), strict=True
            ):
                self._places[name] = (
                    self._places.get(name, (first, 0))[0],
                    last,
                )  # chunks may cut a video
                first = last
            start += len(chunk)
        self._orders, self._starts = [], []
        for part in _parts(hashes):
            order = np.argsort(part, kind="stable").astype(np.int32)
            self._orders.append(order)
            self._starts.append(np.searchsorted(part[order], np.arange((1 << PART_BITS) + 1)))

    def video_ids(self) -> list[str]:
        """Of all frames, each once."""
        return list(self._places)

    def holds(self, video_id: str, times_s: Sequence[float], hashes: Hashes) -> bool:
        """Whether the frames of a part of a video, at times [T] and with hashes [T], are those that
        are here."""
        rows = slice(*self._places.get(video_id, (0, 0)))
        seconds, times = self._frames["second"][rows].to_numpy(), np.asarray(times_s, np.float32)
        inside = (seconds >= times[0]) & (seconds <= times[-1])
        place = np.searchsorted(times, seconds[inside])
        return bool(
            np.all(
                (times[place] == seconds[inside]) & (hashes[place] == self._hashes[rows][inside])
            )
        )

    def search(self, hashes: Hashes, k: int) -> pa.Table:
        """The k nearest frames of each of the hashes [Q] that are within RADIUS bits, nearest
        first, none for NO_HASH. Returns the columns of FOUND_FRAMES, with similarities above 0, 1
        for the same hash."""
        asked = np.flatnonzero(hashes != NO_HASH)
        places = [np.zeros(0, np.int64)]
        for part, order, starts in zip(
            _parts(hashes[asked]), self._orders, self._starts, strict=True
        ):
            near = (part[:, None] ^ _NEAR).astype(np.int64)
            first, count = starts[near], starts[near + 1] - starts[near]
            batch = np.cumsum(count.sum(axis=1)) // MAX_COMPARED
            for some in np.split(np.arange(len(asked)), np.flatnonzero(np.diff(batch)) + 1):
                lengths = count[some].ravel()
                within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                rows = order[np.repeat(first[some].ravel(), lengths) + within]
                numbers = np.repeat(asked[some], count[some].sum(axis=1))
                same = np.bitwise_count(self._hashes[rows] ^ hashes[numbers]) <= RADIUS
                places.append(numbers[same] * len(self._hashes) + rows[same])
        # equal parts are found more than once
        query, row = np.divmod(np.unique(np.concatenate(places)), max(len(self._hashes), 1))
        bits = np.bitwise_count(self._hashes[row] ^ hashes[query])
        best = np.lexsort((bits, query))
        best = best[np.arange(len(best)) - np.searchsorted(query, query) < k]
        found = self._frames.take(pa.array(row[best]))
        similarity = 1 - bits[best].astype(np.float32) / (RADIUS + 1)
        return pa.table(
            [query[best].astype(np.int32), *found.columns, similarity], schema=FOUND_FRAMES
        )


def _parts(hashes: Hashes) -> list[npt.NDArray[np.uint16]]:
    return [(hashes >> np.uint64(PART_BITS * number)).astype(np.uint16) for number in range(PARTS)]
