"""What speaks for a match: each kind of evidence, declared once.

A new kind is a class here and a place in `KINDS`. Searches measure it, a fit weighs it, and
explanations name it. In a model that was fitted earlier its weight is 0, also in the one that
ships (`hapvr/scorer/calibrations`).

It is measured on what is known of the compared frames, `EmbeddedVideo`. Anything else about a
video is a field there and of `SampledFeatures`, which a query gets from `VideoReader` and a video
of the collection from `SearchableCollection`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.sparse_segments import best_timed_run


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """A part of a query, and the part of a candidate that it was compared with."""

    query: EmbeddedVideo
    reference: EmbeddedVideo
    similarity: NDArray[np.floating]
    """[T, T'], relative similarities of their frames, in [-1, 1]"""
    view: int
    """of the query: 0 is its whole picture, the others are crops of it"""
    fps: float
    """of the sampling"""


class Evidence(Protocol):
    """A kind of evidence."""

    @property
    def name(self) -> str:
        """The name under which models store its weight."""

    @property
    def typical_weight(self) -> float:
        """The weight to which a fit is drawn, so that a few queries alone do not decide."""

    @property
    def relative(self) -> bool:
        """Whether it is a similarity, in [-1, 1], that counts by how far it exceeds what unrelated
        videos reach."""

    def measure(self, comparison: Comparison) -> float:
        """The value for the parts of two videos, never less where they share more. NaN where it is
        not known, which adds nothing."""


@dataclass(frozen=True)
class FrameRun:
    """The highest similarity of two consecutive frames."""

    name: str = "frame_run"
    typical_weight: float = 10.9
    relative: bool = True

    def measure(self, comparison: Comparison) -> float:
        """The best run of the parts."""
        return best_timed_run(
            comparison.similarity,
            comparison.query.clock,
            comparison.reference.clock,
            fps=comparison.fps,
        )


@dataclass(frozen=True)
class WholePicture:
    """Whether the whole picture of the query was compared: crops find more by chance."""

    name: str = "whole_picture"
    typical_weight: float = 1.5
    relative: bool = False

    def measure(self, comparison: Comparison) -> float:
        """1, or 0 for a crop."""
        return float(comparison.view == 0)


FRAME_RUN = FrameRun()
KINDS: tuple[Evidence, ...] = (FRAME_RUN, WholePicture())
"""All kinds. Their typical weights are those of 561 uploads of 44 videos that `bench.quality` made
(validation, EfficientNet-Lite0). A collection's own edits are easier and fewer than what people
upload."""


def names() -> tuple[str, ...]:
    """The names of all kinds."""
    return tuple(kind.name for kind in KINDS)


def measured(comparison: Comparison) -> dict[str, float]:
    """The value of each kind for a comparison, by name."""
    return {kind.name: kind.measure(comparison) for kind in KINDS}


def strongest(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """The higher value of each kind from two comparisons of the same videos."""
    return {
        name: float(np.fmax(first.get(name, math.nan), second.get(name, math.nan)))
        for name in names()
    }


def table_of(measures: Sequence[Mapping[str, float]]) -> NDArray[np.float64]:
    """[N, F], the values of the kinds for N candidates, in the order of KINDS."""
    rows = [[of_candidate.get(name, math.nan) for name in names()] for of_candidate in measures]
    return np.array(rows, np.float64).reshape(len(rows), len(KINDS))
