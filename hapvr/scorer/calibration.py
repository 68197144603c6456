"""From similarity to the probability of a match (Platt, 1999, with his smoothed targets)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, FiniteFloat

from hapvr.errors import ArgumentError
from hapvr.scorer import course
from hapvr.settings import Rate

Floats = NDArray[np.float64]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Verdict = Literal["match", "no match", "unsure"]

PRECISIONS = (0.5, 0.8, 0.9, 0.95, 0.99)

MIN_PAIRS = 10
"""With fewer matches, or other pairs, a curve would say more than the data does."""


@dataclass(frozen=True, kw_only=True)
class PrecisionThreshold:
    """The lowest similarity at which a target precision was reached, and the pairs behind that."""

    precision: Rate
    """Wanted."""
    similarity: FiniteFloat | None
    """None where no threshold reaches it."""
    found: Rate
    """Precision of the pairs at or above it."""
    recall: Rate
    """Recall of the pairs at or above it."""
    num_pairs: Count
    """The number of pairs at or above it."""
    num_matches: Count
    """The number of matches among them."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """P(match | similarity) = 1 / (1 + exp(-(slope * similarity + intercept))), never falling."""

    slope: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    intercept: FiniteFloat
    prior: Annotated[float, Field(gt=0, lt=1)]
    """Share of matches among the fitted pairs; probabilities and thresholds hold for pairs with
    that share, see `probability`."""
    num_matches: Count
    num_others: Count
    brier: Rate | None
    """Mean squared error of the probabilities on the fitted pairs, None where that was not
    measured."""
    thresholds: Annotated[tuple[PrecisionThreshold, ...], Field(min_length=1)]
    frame_threshold: FiniteFloat | None = None
    """The frame similarity that an aligned segment must exceed, None where it is not known."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """Where the pairs come from."""

    def probability(
        self, similarity: float, *, prior: float | None = None, one_course: bool = False
    ) -> float:
        """Probability in [0, 1] that a pair of this similarity is a match.

        prior: share of matches among the pairs that are asked about, in (0, 1); None: as among the
            fitted ones. Another prior shifts the log-odds by the difference of the two priors'
            log-odds (Bayes).
        one_course: whether aligned frames have the same course, see `hapvr.scorer.course`.

        Raises: ArgumentError for a prior outside (0, 1).
        """
        if prior is not None and not 0 < prior < 1:
            raise ArgumentError(
                f"prior is {prior}; expected the share of matches, above 0 and below 1"
            )

        shift = 0.0 if prior is None else logit(prior) - logit(self.prior)
        if one_course:
            shift += course.LOG_ODDS
        return float(sigmoid(np.asarray(self.slope * similarity + self.intercept + shift)))

    def threshold(self, precision: float) -> PrecisionThreshold:
        """The stored threshold of the lowest precision >= the wanted one. Raises ArgumentError
        unless 0 < precision <= the highest one."""
        rows = {row.precision: row for row in self.thresholds}
        enough = [stored for stored in rows if 0 < precision <= stored + 1e-9]
        if not enough:
            raise ArgumentError(
                f"precision is {precision}; expected above 0 and at most {max(rows)}"
            )

        return rows[min(enough)]

    def verdict(
        self,
        similarity: float,
        *,
        precision: float,
        prior: float | None = None,
        one_course: bool = False,
    ) -> Verdict:
        """Whether a pair of this similarity is a match. With one course it is judged as if it were
        more similar, by as much as the course makes a match likelier.

        "match": the similarity reaches the threshold of that precision; with a prior of your own,
        its probability is `precision` or more. "no match": its probability is 1 - precision or
        less. Else "unsure". Raises ArgumentError for a precision above the highest stored one and
        for a prior outside (0, 1)."""
        probability = self.probability(similarity, prior=prior, one_course=one_course)
        threshold = self.threshold(precision).similarity
        if one_course and self.slope > 0:
            similarity += course.LOG_ODDS / self.slope
        if prior is None:
            is_match = threshold is not None and similarity >= threshold
        else:
            is_match = probability >= precision

        if is_match:
            return "match"
        return "no match" if probability <= 1 - precision else "unsure"


def fit_calibration(
    matches: ArrayLike,
    others: ArrayLike,
    *,
    source: Mapping[str, Any],
    frame_threshold: float | None = None,
) -> Calibration:
    """Fit on similarities of matching pairs and of others, each [K] and finite. The share of
    matches among these pairs is the prior. A negative slope is set to 0; then the probability of
    every pair is the prior. Raises ArgumentError for fewer than MIN_PAIRS of either, or values not
    finite."""
    positive = np.asarray(matches, np.float64).ravel()
    negative = np.asarray(others, np.float64).ravel()
    similarity = np.concatenate([positive, negative])
    if min(len(positive), len(negative)) < MIN_PAIRS or not np.isfinite(similarity).all():
        raise ArgumentError(
            f"calibration: {len(positive)} matching and {len(negative)} other pairs; expected "
            f"{MIN_PAIRS} of each or more, all "
            "finite"
        )

    is_match = np.arange(len(similarity)) < len(positive)
    # Platt's targets, as if each class had one more pair of the other kind
    target_of_matches = (len(positive) + 1) / (len(positive) + 2)
    target_of_others = 1 / (len(negative) + 2)
    target = np.where(is_match, target_of_matches, target_of_others)
    (slope,), intercept = fit_logistic(similarity[:, None], target)
    return Calibration(
        slope=float(slope),
        intercept=intercept,
        prior=float(is_match.mean()),
        num_matches=len(positive),
        num_others=len(negative),
        brier=float(np.mean((sigmoid(slope * similarity + intercept) - is_match) ** 2)),
        thresholds=_thresholds(similarity, is_match),
        frame_threshold=frame_threshold,
        source=dict(source),
    )


def _thresholds(similarity: Floats, is_match: NDArray[np.bool_]) -> tuple[PrecisionThreshold, ...]:
    """For each wanted precision the lowest observed similarity at or above which it is reached.
    Both arrays [K], K >= 1."""
    order = np.argsort(-similarity, kind="stable")
    ordered = similarity[order]
    hits = np.cumsum(is_match[order])
    last_of_ties = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    counts = last_of_ties + 1
    matches = hits[last_of_ties]
    total = max(int(is_match.sum()), 1)
    rows = []
    for wanted in PRECISIONS:
        reached = np.flatnonzero(matches >= wanted * counts)
        num_pairs = int(counts[reached[-1]]) if len(reached) else 0
        num_matches = int(matches[reached[-1]]) if len(reached) else 0
        threshold = PrecisionThreshold(
            precision=wanted,
            similarity=float(ordered[num_pairs - 1]) if num_pairs else None,
            found=num_matches / num_pairs if num_pairs else 0.0,
            recall=num_matches / total,
            num_pairs=num_pairs,
            num_matches=num_matches,
        )
        rows.append(threshold)

    return tuple(rows)


def fit_logistic(
    inputs: Floats, target: Floats, *, penalty: float = 1e-9, towards: Floats | None = None
) -> tuple[Floats, float]:
    """Logistic regression by Newton's method with an active set: weights [F] >= 0, so that more
    evidence never counts less, and an intercept, for inputs [N, F] and targets [N] in [0, 1].

    penalty: of the squared distance of the weights (L2) of standardised inputs from those of
    `towards`, default is 0, against the sum of the log losses; the intercept has none."""
    center = inputs.mean(axis=0)
    scale = inputs.std(axis=0)
    used = scale > 1e-12  # other inputs tell nothing
    scale = np.where(used, scale, 1.0)
    rows = np.column_stack([(inputs - center) / scale * used, np.ones(len(inputs))])
    ridge = np.append(np.full(len(center), penalty), 0.0)
    least = np.append(np.zeros(len(center)), -np.inf)
    home = np.append(np.zeros(len(center)) if towards is None else towards * scale * used, 0.0)
    weights = np.append(home[:-1], logit(float(target.mean())))

    def loss_of(tried: Floats) -> float:
        logits = rows @ tried
        log_losses = np.sum(np.logaddexp(0, logits) - target * logits)
        return float(log_losses + ridge @ (tried - home) ** 2 / 2)

    loss = loss_of(weights)
    for _ in range(100):
        predicted = sigmoid(rows @ weights)
        gradient = rows.T @ (predicted - target) + ridge * (weights - home)
        free = (weights > least) | (gradient < 0)
        curvature = (rows * (predicted * (1 - predicted))[:, None]).T @ rows + np.diag(ridge + 1e-9)
        step = np.zeros_like(weights)
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
        rate = 1.0
        while rate > 1e-8 and loss_of(np.maximum(weights - rate * step, least)) > loss:
            rate /= 2
        weights = np.maximum(weights - rate * step, least)
        before = loss
        loss = loss_of(weights)
        if before - loss <= 1e-12 * max(1.0, before):
            break

    slopes = weights[:-1] * used / scale
    return slopes, float(weights[-1] - slopes @ center)


def sigmoid(logits: Floats) -> Floats:
    """Probabilities of log-odds."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits)), np.float64)


def logit(rate: float) -> float:
    """Log-odds of a probability in (0, 1)."""
    return math.log(rate / (1 - rate))


def chance(probability: float | None) -> str:
    """A probability for people to read; only certainty is shown as 100.0 %."""
    if probability is None:
        return " " * 7
    percent = 100.0 if probability == 1 else min(100 * probability, 99.9)
    return f"{percent:5.1f} %"
