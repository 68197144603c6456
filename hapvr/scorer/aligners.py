"""Ways to find matching segments in a matrix of frame similarities, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from numpy.typing import ArrayLike

from hapvr.scorer.hough import hough_voting
from hapvr.scorer.segments import Alignment, align

AlignerName = Literal["tn", "hough"]


class Aligner(Protocol):
    """See `hapvr.scorer.segments.align`."""

    def __call__(self, similarity: ArrayLike, *, threshold: float) -> list[Alignment]:
        """similarity: [T, T']. Parts that match, the surest first."""


ALIGNERS: Mapping[AlignerName, Aligner] = {"tn": align, "hough": hough_voting}
"""Hough voting is there to be compared with."""

DEFAULT_ALIGNER: AlignerName = "tn"
"""A temporal network: what searches and scores print."""
