"""From similarity to the probability of a match (Platt, 1999, with his smoothed targets)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import AfterValidator, Field, FiniteFloat

from hapvr.errors import ArgumentError
from hapvr.scorer.logistic import Floats, fit_logistic, logit, sigmoid
from hapvr.scorer.segments import DEFAULT_THRESHOLD
from hapvr.settings import Rate

Count = Annotated[int, Field(ge=0, lt=2**63)]
Verdict = Literal["match", "no match", "unsure"]

PRECISIONS = (0.5, 0.8, 0.9, 0.95, 0.99)

MIN_PAIRS = 10
"""Matches, and other pairs, below which a curve would say more than the data does."""

NUM_BINS = 10


@dataclass(frozen=True, kw_only=True)
class PrecisionThreshold:
    """The lowest similarity at which a wanted precision was reached, and what that rests on.

    precision: wanted. similarity: None where no threshold reaches it. found, recall: precision and recall of the pairs at
    or above it. lower: end of the 95 % Wilson interval of `found`. num_pairs, num_matches: pairs at or above it, and the
    matches among them.
    """

    precision: Rate
    similarity: FiniteFloat | None
    found: Rate
    lower: Rate
    recall: Rate
    num_pairs: Count
    num_matches: Count


def _rising(rows: tuple[PrecisionThreshold, ...]) -> tuple[PrecisionThreshold, ...]:
    if any(row.precision >= following.precision for row, following in pairwise(rows)):
        raise ValueError("the wanted precisions do not rise")
    return rows


@dataclass(frozen=True, kw_only=True)
class ReliabilityBin:
    """Pairs of similar predicted probability: their mean prediction, the rate of matches among them, their number."""

    predicted: Rate
    observed: Rate
    num_pairs: Count


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """P(match | similarity) = 1 / (1 + exp(-(slope * similarity + intercept))), never falling.

    prior: share of matches among the fitted pairs; probabilities and thresholds hold for pairs with that share, see
    `probability`. brier: mean squared error of the probabilities on the fitted pairs. frame_threshold: the frame
    similarity that an aligned segment must exceed, None where it is not known. source: what the pairs were.
    """

    slope: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    intercept: FiniteFloat
    prior: Annotated[float, Field(gt=0, lt=1)]
    num_matches: Count
    num_others: Count
    brier: Rate
    thresholds: Annotated[tuple[PrecisionThreshold, ...], Field(min_length=1), AfterValidator(_rising)]
    reliability: tuple[ReliabilityBin, ...]
    frame_threshold: FiniteFloat | None = None
    source: Mapping[str, Any] = field(default_factory=dict)

    def probability(self, similarity: float, *, prior: float | None = None) -> float:
        """Probability in [0, 1] that a pair of this similarity is a match.

        prior: share of matches among the pairs that are asked about, in (0, 1); None: as among the fitted ones. Another
        prior shifts the log-odds by the difference of the two priors' log-odds (Bayes). Raises ArgumentError outside (0, 1).
        """
        return float(self.probabilities(similarity, prior=prior))

    def probabilities(self, similarity: ArrayLike, *, prior: float | None = None) -> Floats:
        """`probability` of an array of any shape."""
        shift = 0.0
        if prior is not None:
            if not 0 < prior < 1:
                raise ArgumentError(f"prior is {prior}; wanted the share of matches, above 0 and below 1")
            shift = logit(prior) - logit(self.prior)
        return sigmoid(self.slope * np.asarray(similarity, np.float64) + self.intercept + shift)

    def threshold(self, precision: float) -> PrecisionThreshold:
        """The stored threshold of the lowest precision that is at least the wanted one.

        Raises ArgumentError for a precision that is not above 0, and above the highest one.
        """
        for row in self.thresholds:
            if 0 < precision <= row.precision + 1e-9:
                return row
        raise ArgumentError(f"precision is {precision}; wanted above 0 and at most {self.thresholds[-1].precision}")

    def verdict(self, similarity: float, *, precision: float, prior: float | None = None) -> Verdict:
        """Whether a pair of this similarity is a match.

        "match": the similarity reaches the threshold of that precision; with a prior of your own, its probability is
        `precision` or more. "no match": its probability is 1 - precision or less. Else "unsure".
        Raises ArgumentError for a precision above the highest stored one and for a prior outside (0, 1).
        """
        probability = self.probability(similarity, prior=prior)
        threshold = self.threshold(precision).similarity
        reached = threshold is not None and similarity >= threshold
        if reached if prior is None else probability >= precision:
            return "match"
        return "no match" if probability <= 1 - precision else "unsure"


def frame_threshold(calibration: Calibration | None) -> float:
    """Relative frame similarity from which on two frames count as the same in segments: the fitted one, or the default."""
    known = None if calibration is None else calibration.frame_threshold
    return DEFAULT_THRESHOLD if known is None else known


def fit_calibration(
    matches: ArrayLike, others: ArrayLike, *, source: Mapping[str, Any], frame_threshold: float | None = None
) -> Calibration:
    """Fit on similarities of matching pairs and of others, each [K] and finite.

    Pairs count as they come: the share of matches among them is the prior. A slope that would fall is set to 0, so that
    probabilities are then the prior for all. Raises ArgumentError for fewer than MIN_PAIRS of either, or values not finite.
    """
    positive, negative = (np.asarray(values, np.float64).ravel() for values in (matches, others))
    similarity = np.concatenate([positive, negative])
    if min(len(positive), len(negative)) < MIN_PAIRS or not np.isfinite(similarity).all():
        raise ArgumentError(
            f"calibration: {len(positive)} matching and {len(negative)} other pairs; wanted {MIN_PAIRS} of each or more, all "
            "finite"
        )
    is_match = np.arange(len(similarity)) < len(positive)
    slope, intercept = _fit(similarity, is_match)
    predicted = sigmoid(slope * similarity + intercept)
    return Calibration(
        slope=slope,
        intercept=intercept,
        prior=float(is_match.mean()),
        num_matches=len(positive),
        num_others=len(negative),
        brier=float(np.mean((predicted - is_match) ** 2)),
        thresholds=precision_thresholds(similarity, is_match, precisions=PRECISIONS),
        reliability=_reliability(predicted, is_match),
        frame_threshold=frame_threshold,
        source=dict(source),
    )


def precision_thresholds(
    similarity: Floats, is_match: NDArray[np.bool_], *, precisions: Sequence[float]
) -> tuple[PrecisionThreshold, ...]:
    """Per wanted precision the lowest observed similarity at or above which it is reached. Both arrays [K], K >= 1."""
    order = np.argsort(-similarity, kind="stable")
    ordered, hits = similarity[order], np.cumsum(is_match[order])
    last_of_ties = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    counts, matches = last_of_ties + 1, hits[last_of_ties]
    rows = []
    for wanted in precisions:
        reached = np.flatnonzero(matches >= wanted * counts)
        chosen = int(reached[-1]) if len(reached) else None
        number, found = (int(counts[chosen]), int(matches[chosen])) if chosen is not None else (0, 0)
        rows.append(
            PrecisionThreshold(
                precision=wanted,
                similarity=None if chosen is None else float(ordered[last_of_ties[chosen]]),
                found=found / number if number else 0.0,
                lower=_wilson_lower(found, number),
                recall=found / max(int(is_match.sum()), 1),
                num_pairs=number,
                num_matches=found,
            )
        )
    return tuple(rows)


def _fit(similarity: Floats, is_match: NDArray[np.bool_]) -> tuple[float, float]:
    """Slope >= 0 and intercept, with Platt's targets."""
    num_matches = int(is_match.sum())
    target = np.where(is_match, (num_matches + 1) / (num_matches + 2), 1 / (len(is_match) - num_matches + 2))
    slopes, intercept = fit_logistic(similarity[:, None], target)
    return float(slopes[0]), intercept


def _reliability(predicted: Floats, is_match: NDArray[np.bool_]) -> tuple[ReliabilityBin, ...]:
    bins = np.minimum((predicted * NUM_BINS).astype(int), NUM_BINS - 1)
    return tuple(
        ReliabilityBin(
            predicted=float(predicted[bins == number].mean()),
            observed=float(is_match[bins == number].mean()),
            num_pairs=int((bins == number).sum()),
        )
        for number in range(NUM_BINS)
        if (bins == number).any()
    )


def _wilson_lower(hits: int, number: int, *, z: float = 1.96) -> float:
    """Lower end of Wilson's score interval of a rate; 0 for no trials."""
    if number == 0:
        return 0.0
    rate = hits / number
    center = rate + z * z / (2 * number)
    spread = z * math.sqrt(rate * (1 - rate) / number + z * z / (4 * number * number))
    return max(0.0, (center - spread) / (1 + z * z / number))
