"""The features of a query that stay with its answer, so that its pairs can be compared frame by
frame when the search itself has gone: fewer frames, in half precision."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hapvr.scorer.segments import FrameTimes
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.match import thin

MAX_BYTES = 2**20
"""Of the features of one query: with the network for copies, those of 170 frames."""

DTYPE = np.dtype("<f2")


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptFrames:
    """Features of some frames of a query."""

    network: str
    """Digest of the network that made them; others cannot be compared with them."""

    views: NDArray[np.float16]
    """[V, T, R, D]: of the whole picture, then of each crop."""

    times_s: tuple[float, ...]
    """When the T frames are shown."""

    duration_s: float | None
    """When the picture ends, where that is known."""

    def features(self) -> SampledFeatures:
        """The frames as a query."""
        clock = FrameTimes(self.times_s, self.duration_s)
        no_hashes = np.zeros(len(self.times_s), np.uint64)
        crops = tuple(SampledFeatures(view, clock, no_hashes) for view in self.views[1:])
        return SampledFeatures(self.views[0], clock, no_hashes, crops)

    def record(self) -> dict[str, Any]:
        """The frames as JSON."""
        return {
            "network": self.network,
            "shape": self.views.shape,
            "values": b64encode(self.views.tobytes()).decode(),
            "times_s": self.times_s,
            "duration_s": self.duration_s,
        }


def frames_to_keep(
    query: SampledFeatures, network: str, *, max_bytes: int = MAX_BYTES
) -> KeptFrames:
    """As many frames of a query as fit into so many bytes, evenly apart.

    network: digest of the network that made its features."""
    num_views = 1 + len(query.crops)
    frame_bytes = num_views * DTYPE.itemsize * int(np.prod(query.regions.shape[1:]))
    few = thin(query, max(max_bytes // frame_bytes, 1))
    views = np.stack([view.regions for view in (few, *few.crops)])
    return KeptFrames(
        network=network,
        views=views.astype(DTYPE),
        times_s=few.clock.times_s,
        duration_s=few.clock.duration_s,
    )


def read_frames(record: Mapping[str, Any]) -> KeptFrames:
    """What `KeptFrames.record` gave. Raises ValueError, KeyError or TypeError for anything else."""
    values = np.frombuffer(b64decode(record["values"]), DTYPE)
    views = values.reshape(record["shape"]).copy()  # torch wants arrays that can be written
    times_s = tuple(map(float, record["times_s"]))
    if views.ndim != 4 or views.shape[1] != len(times_s):
        raise ValueError("frames of another shape than their times")
    return KeptFrames(
        network=str(record["network"]),
        views=views,
        times_s=times_s,
        duration_s=record["duration_s"],
    )
