"""From all that a search knows of a candidate to the probability of a match: the order, the
probability and the verdict of an answer come from this one number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, FiniteFloat

from hapvr.errors import ArgumentError
from hapvr.scorer.calibration import MIN_PAIRS, Count, Floats, fit_logistic, logit, sigmoid
from hapvr.settings import Rate

TYPICAL = {
    "frame_run": 10.9,
    "whole_picture": 1.5,
}
"""Weights to which a fit is drawn: those of 561 uploads of 44 videos that `bench.quality` made
(validation, EfficientNet-Lite0). A collection's own edits are easier and fewer than what people
upload."""
FEATURES = tuple(TYPICAL)
"""What is known of a candidate, see `hapvr.search.engine.evidence_of`."""
PENALTY = 100.0
"""How strongly, see `fit_logistic`."""

RELATIVE = ("frame_run",)
"""What counts by how much it exceeds that of the query's `FEW`th best candidate, since some queries
look like everything."""
_PLACES = [FEATURES.index(name) for name in RELATIVE]
FEW = 6
ROUNDS = 3
"""How often the views that say most of each candidate are chosen by the weights fitted before."""
FOLDS = 5
MIN_GROUPS = FOLDS
"""Groups of queries below which a model would say more than the data does."""


def _complete(weights: Mapping[str, float]) -> Mapping[str, float]:
    if tuple(weights) != FEATURES:
        raise ValueError(f"wanted weights of {', '.join(FEATURES)}, in this order")
    return weights


Levels = Annotated[
    tuple[FiniteFloat, ...], Field(min_length=len(RELATIVE), max_length=len(RELATIVE))
]


@dataclass(frozen=True, kw_only=True)
class EvidenceModel:
    """P(match | evidence) = 1 / (1 + exp(-(intercept + sum of weight * feature))), never falling in
    any feature. usual, most: each of RELATIVE of the `FEW`th best candidate that is no match, the
    mean and the highest of all searches. The first counts where a search has fewer candidates; the
    second is the limit, since a query may have many copies. prior: share of matches among the
    fitted candidates. brier: of predictions for queries that were not fitted. num_matches,
    num_others: candidates of searches of num_groups groups. source: what these were."""

    weights: Annotated[
        Mapping[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]], AfterValidator(_complete)
    ]
    intercept: FiniteFloat
    usual: Levels
    most: Levels
    prior: Annotated[float, Field(gt=0, lt=1)]
    brier: Rate
    num_matches: Count
    num_others: Count
    num_groups: Count
    source: Mapping[str, Any] = field(default_factory=dict)

    def contributions(self, features: Floats) -> Floats:
        """[N, F], what each feature adds to the log-odds. features: [N, F] in the order of
        FEATURES, of all candidates of a view."""
        weights = np.array([self.weights[name] for name in FEATURES])
        return np.asarray(_relative(features, self.usual, self.most) * weights, np.float64)

    def log_odds(self, features: Floats) -> Floats:
        """[N] of the features of `contributions`."""
        return np.asarray(self.contributions(features).sum(axis=1) + self.intercept, np.float64)

    def probability(self, log_odds: float, *, prior: float | None = None) -> float:
        """In [0, 1]. prior: share of matches among the candidates that are asked about, in (0, 1);
        None: as among the fitted ones. Another prior shifts the log-odds by the difference of the
        two priors' log-odds (Bayes)."""
        shift = 0.0 if prior is None else logit(prior) - logit(self.prior)
        return float(sigmoid(np.asarray(log_odds + shift)))


def fit_evidence(
    searches: Sequence[tuple[Floats, NDArray[np.bool_]]],
    groups: Sequence[str],
    *,
    source: Mapping[str, Any],
) -> EvidenceModel:
    """Fit on the candidates of searches: features [V, N, F] in the order of FEATURES, not a number
    where a view does not have a video among its candidates, and which are matches [N]. groups: what
    each search is for.

    A candidate counts by the view that says most for it, as in answers. All searches of a group are
    either fitted or predicted. Raises ArgumentError for too few groups, matches or other
    candidates."""
    is_match = np.concatenate([np.zeros(0, bool), *(found for _, found in searches)])
    number_of = {name: number for number, name in enumerate(sorted(set(groups)))}
    counts = int(is_match.sum()), int((~is_match).sum())
    if min(counts) < MIN_PAIRS or len(number_of) < MIN_GROUPS:
        raise ArgumentError(
            f"evidence: {len(number_of)} videos searched for, with {counts[0]} matches and "
            f"{counts[1]} others among their "
            f"candidates; wanted {MIN_GROUPS} videos and {MIN_PAIRS} of each"
        )
    others = [_known(view[~match]) for found, match in searches for view in found]
    reached = np.array(
        [np.sort(view, axis=0)[-min(FEW, len(view))] for view in others if len(view)]
    )
    usual, most = tuple(reached.mean(axis=0).tolist()), tuple(reached.max(axis=0).tolist())
    relative = [np.stack([_relative(view, usual, most) for view in found]) for found, _ in searches]
    target, typical = is_match.astype(np.float64), np.array(list(TYPICAL.values()))
    weights = typical
    for _ in range(ROUNDS):
        best = [np.nan_to_num(found @ weights, nan=-np.inf).argmax(axis=0) for found in relative]
        rows = [
            found[view, np.arange(len(view))] for found, view in zip(relative, best, strict=True)
        ]
        features = np.concatenate(rows)
        weights, intercept = fit_logistic(features, target, penalty=PENALTY, towards=typical)
    fold = np.repeat(
        [number_of[name] % FOLDS for name in groups], [len(found) for _, found in searches]
    )
    predicted = np.zeros(len(target))
    for number in range(FOLDS):
        one = fold == number
        slopes, constant = fit_logistic(
            features[~one], target[~one], penalty=PENALTY, towards=typical
        )
        predicted[one] = sigmoid(features[one] @ slopes + constant)
    return EvidenceModel(
        weights=dict(zip(FEATURES, weights.tolist(), strict=True)),
        intercept=intercept,
        usual=usual,
        most=most,
        prior=float(target.mean()),
        brier=float(np.mean((predicted - target) ** 2)),
        num_matches=counts[0],
        num_others=counts[1],
        num_groups=len(number_of),
        source=dict(source),
    )


def _known(features: Floats) -> Floats:
    """Those of RELATIVE, of the candidates that a view found."""
    return np.asarray(features[~np.isnan(features).any(axis=1)][:, _PLACES], np.float64)


def _relative(features: Floats, usual: Sequence[float], most: Sequence[float]) -> Floats:
    """Features of one view of a search, those of RELATIVE less what counts."""
    known, relative = _known(features), features.copy()
    reached = np.sort(known, axis=0)[-FEW] if len(known) >= FEW else np.asarray(usual)
    relative[:, _PLACES] -= np.minimum(reached, most)
    return relative
