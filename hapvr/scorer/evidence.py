"""From all that a search knows of a candidate to the probability of a match: the order, the probability and the verdict of an
answer come from this one number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, FiniteFloat

from hapvr.errors import ArgumentError
from hapvr.scorer.calibration import MIN_PAIRS, Count
from hapvr.scorer.logistic import Floats, fit_logistic, log_loss, logit, sigmoid
from hapvr.settings import Rate

Feature = Literal[
    "similarity",
    "hashes_aligned",
    "hashes_shared",
    "num_hashes",
    "votes",
    "num_votes",
    "whole_picture",
]
"""What is known of a candidate, see `hapvr.search.evidence`."""
FEATURES: tuple[Feature, ...] = get_args(Feature)

RELATIVE: tuple[Feature, ...] = ("similarity", "votes", "num_votes")
"""What counts by how much it exceeds the median of the query's candidates: some queries look like everything."""
ROUNDS = 3
"""How often the views that say most are chosen by the weights fitted before."""
FEW = 20
"""Fewer candidates are filled up to this number with what is usual, since most of them may be matches."""

PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0)
FOLDS = 5
MIN_GROUPS = FOLDS
"""Groups of queries below which a model would say more than the data does."""


def _complete(weights: Mapping[Feature, float]) -> Mapping[Feature, float]:
    if tuple(weights) != FEATURES:
        raise ValueError(f"wanted weights of {', '.join(FEATURES)}, in this order")
    return weights


@dataclass(frozen=True, kw_only=True)
class EvidenceModel:
    """P(match | evidence) = 1 / (1 + exp(-(intercept + sum of weight * feature))), never falling in any feature.

    usual: the median of each of RELATIVE among candidates of a search. prior: share of matches among the fitted candidates.
    penalty: L2, the one of PENALTIES with the least loss on queries that were not fitted. brier: of the predictions for these.
    num_matches, num_others: candidates of searches of num_groups groups. source: what these were.
    """

    weights: Annotated[Mapping[Feature, Annotated[float, Field(ge=0, allow_inf_nan=False)]], AfterValidator(_complete)]
    intercept: FiniteFloat
    usual: Annotated[tuple[FiniteFloat, ...], Field(min_length=len(RELATIVE), max_length=len(RELATIVE))]
    prior: Annotated[float, Field(gt=0, lt=1)]
    penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    brier: Rate
    num_matches: Count
    num_others: Count
    num_groups: Count
    source: Mapping[str, Any] = field(default_factory=dict)

    def contributions(self, features: Floats) -> Floats:
        """[N, F], what each feature adds to the log-odds. features: [N, F] in the order of FEATURES, of all candidates of one
        view of a query."""
        return np.asarray(
            _relative(features, self.usual) * np.array([self.weights[name] for name in FEATURES]), np.float64
        )

    def log_odds(self, features: Floats) -> Floats:
        """[N] of the features of `contributions`."""
        return np.asarray(self.contributions(features).sum(axis=1) + self.intercept, np.float64)

    def probability(self, log_odds: float, *, prior: float | None = None) -> float:
        """In [0, 1]. prior: share of matches among the candidates that are asked about, in (0, 1); None: as among the fitted
        ones. Another prior shifts the log-odds by the difference of the two priors' log-odds (Bayes)."""
        shift = 0.0 if prior is None else logit(prior) - logit(self.prior)
        return float(sigmoid(np.asarray(log_odds + shift)))


def fit_evidence(
    searches: Sequence[tuple[Floats, NDArray[np.bool_]]], groups: Sequence[str], *, source: Mapping[str, Any]
) -> EvidenceModel:
    """Fit on the candidates of searches: features [V, N, F] in the order of FEATURES, not a number where a view does not have a
    video among its candidates, and which are matches [N]. groups: what each search is for.

    A candidate counts by the view that says most for it, as in answers. The penalty is chosen by groups: all searches of a group
    are either fitted or predicted. Raises ArgumentError for too few groups, matches or other candidates.
    """
    is_match = np.concatenate([np.zeros(0, bool), *(found for _, found in searches)])
    number_of = {name: number for number, name in enumerate(sorted(set(groups)))}
    counts = int(is_match.sum()), int((~is_match).sum())
    if min(counts) < MIN_PAIRS or len(number_of) < MIN_GROUPS:
        raise ArgumentError(
            f"evidence: {len(number_of)} videos searched for, with {counts[0]} matches and {counts[1]} others among their "
            f"candidates; wanted {MIN_GROUPS} videos and {MIN_PAIRS} of each"
        )
    views = [view[:, _PLACES] for found, _ in searches for view in found if not np.isnan(view).all()]
    usual = tuple(np.mean([np.nanmedian(view, axis=0) for view in views], axis=0).tolist())
    relative = [np.stack([_relative(view, usual) for view in found]) for found, _ in searches]
    target, weights = is_match.astype(np.float64), np.eye(len(FEATURES))[0]
    for _ in range(ROUNDS):
        features = np.concatenate([_best_views(found, weights) for found in relative])
        weights, _ = fit_logistic(features, target, penalty=PENALTIES[0])
    folds = [number_of[name] % FOLDS for name in groups]
    fold = np.repeat(folds, [len(found) for _, found in searches])
    held_out = {}
    for penalty in PENALTIES:
        logits = np.zeros(len(target))
        for number in range(FOLDS):
            weights, intercept = fit_logistic(features[fold != number], target[fold != number], penalty=penalty)
            logits[fold == number] = features[fold == number] @ weights + intercept
        held_out[penalty] = logits
    penalty = min(PENALTIES, key=lambda one: log_loss(held_out[one], target))
    weights, intercept = fit_logistic(features, target, penalty=penalty)
    predicted = sigmoid(held_out[penalty])
    return EvidenceModel(
        weights=dict(zip(FEATURES, weights.tolist(), strict=True)),
        intercept=intercept,
        usual=usual,
        prior=float(target.mean()),
        penalty=penalty,
        brier=float(np.mean((predicted - target) ** 2)),
        num_matches=counts[0],
        num_others=counts[1],
        num_groups=len(number_of),
        source=dict(source),
    )


_PLACES = [FEATURES.index(name) for name in RELATIVE]


def _relative(features: Floats, usual: Sequence[float]) -> Floats:
    """Features of one view of a search, those of RELATIVE less their medians."""
    known = features[~np.isnan(features).any(axis=1)][:, _PLACES]
    filled = np.concatenate([known, np.tile(np.asarray(usual), (max(FEW - len(known), 0), 1))])
    relative = features.copy()
    relative[:, _PLACES] -= np.median(filled, axis=0)
    return relative


def _best_views(relative: Floats, weights: Floats) -> Floats:
    """[N, F], of features [V, N, F] those of the view that says most."""
    said = np.nan_to_num(relative @ weights, nan=-np.inf)
    return np.asarray(relative[said.argmax(axis=0), np.arange(relative.shape[1])], np.float64)
