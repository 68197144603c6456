"""From all evidence on a candidate to the probability of a match: order, probability and verdict of
an answer come from this one number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, FiniteFloat

from hapvr.errors import ArgumentError
from hapvr.scorer import evidence_kinds
from hapvr.scorer.calibration import MIN_PAIRS, Count, Floats, fit_logistic, logit, sigmoid
from hapvr.settings import Rate

PENALTY = 100.0
"""How strongly a fit is drawn towards typical weights, see `fit_logistic`."""

LEVEL_PLACES = slice(5, 20)
"""The sixth to the twentieth best video of a view tell what unrelated videos reach, since some
queries look like everything. Copies and other takes of one scene rank above them."""
LEVEL_FLOOR = 0.1
LEVEL_FLOOR_SMALL = 0.25
"""The least level; then the least for a collection of fewer than SMALL_COLLECTION videos or a pair
of files, where nothing unrelated may be near."""
SMALL_COLLECTION = 100
Flags = NDArray[np.bool_]
ROUNDS = 3
"""How often the strongest view of each candidate is chosen by the weights fitted before."""
FOLDS = 5
MIN_GROUPS = FOLDS
"""With fewer groups of queries a model would say more than the data does."""


def _of_kinds(weights: Mapping[str, float]) -> Mapping[str, float]:
    """Raise ValueError for a weight of an unknown kind: the model is newer than this version."""
    unknown = sorted(weights.keys() - set(evidence_kinds.names()))
    if unknown:
        raise ValueError(
            f"weights of {', '.join(unknown)}, which this version does not know; the kinds are "
            f"{', '.join(evidence_kinds.names())}"
        )

    return weights


@dataclass(frozen=True, kw_only=True)
class EvidenceModel:
    """P(match | evidence) = 1 / (1 + exp(-(intercept + sum of weight * feature))), never falling in
    any feature."""

    weights: Annotated[
        Mapping[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]], AfterValidator(_of_kinds)
    ]
    """by kind, see `hapvr.scorer.evidence_kinds`; 0 for a kind that it lacks"""
    intercept: FiniteFloat
    prior: Annotated[float, Field(gt=0, lt=1)]
    """share of matches among the fitted candidates, or with `prior_of` of searches with a match"""
    prior_of: Literal["pairs", "searches"] = "pairs"
    brier: Rate | None
    """of predictions for queries that were not fitted; None where that was not measured"""
    num_matches: Count
    """candidates of searches of `num_groups` groups"""
    num_others: Count
    num_groups: Count
    source: Mapping[str, Any] = field(default_factory=dict)
    """where these come from"""

    def contributions(
        self, features: Floats, *, num_videos: int, is_copy: Flags | None = None
    ) -> Floats:
        """[N, F], what each feature adds to the log-odds.

        features: [N, F] in the order of `evidence_kinds.KINDS`, of all candidates of a view.
        num_videos: in the collection.
        is_copy: [N], candidates that show the query's own footage and so do not count for the level
        of unrelated videos; None where no copies are known.
        """
        weights = np.array([self.weights.get(name, 0.0) for name in evidence_kinds.names()])
        return np.asarray(_levelled(features, num_videos, is_copy) * weights, np.float64)

    def log_odds(
        self, features: Floats, *, num_videos: int, is_copy: Flags | None = None
    ) -> Floats:
        """[N] of the features of `contributions`."""
        added = self.contributions(features, num_videos=num_videos, is_copy=is_copy)
        return np.asarray(added.sum(axis=1) + self.intercept, np.float64)

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
    num_videos: int,
    source: Mapping[str, Any],
) -> EvidenceModel:
    """Fit on the candidates of searches: features [V, N, F] in the order of `evidence_kinds.KINDS`,
    all NaN where a view does not have a video among its candidates, and which are
    matches [N]. groups: what each search is for. num_videos: in the collection that was searched.

    A candidate counts by its strongest view, as in answers. All searches of a group are either
    fitted or predicted. Raises ArgumentError for too few groups, matches or other candidates."""
    is_match = np.concatenate([np.zeros(0, bool)] + [matches for _, matches in searches])
    number_of = {name: number for number, name in enumerate(sorted(set(groups)))}
    num_matches = int(is_match.sum())
    num_others = int((~is_match).sum())
    if min(num_matches, num_others) < MIN_PAIRS or len(number_of) < MIN_GROUPS:
        raise ArgumentError(
            f"evidence: {len(number_of)} videos searched for, with {num_matches} matches and "
            f"{num_others} others among their candidates; expected {MIN_GROUPS} videos and "
            f"{MIN_PAIRS} of each"
        )

    relative = [np.stack([_levelled(view, num_videos) for view in views]) for views, _ in searches]
    target = is_match.astype(np.float64)
    typical = np.array([kind.typical_weight for kind in evidence_kinds.KINDS])
    weights = typical
    for _ in range(ROUNDS):
        features = np.concatenate([_best_views(views, weights) for views in relative])
        weights, intercept = fit_logistic(features, target, penalty=PENALTY, towards=typical)

    fold_of_search = [number_of[name] % FOLDS for name in groups]
    fold = np.repeat(fold_of_search, [len(matches) for _, matches in searches])
    predicted = np.zeros(len(target))
    for number in range(FOLDS):
        held_out = fold == number
        slopes, constant = fit_logistic(
            features[~held_out], target[~held_out], penalty=PENALTY, towards=typical
        )
        predicted[held_out] = sigmoid(features[held_out] @ slopes + constant)

    return EvidenceModel(
        weights=dict(zip(evidence_kinds.names(), weights.tolist(), strict=True)),
        intercept=intercept,
        prior=float(target.mean()),
        brier=float(np.mean((predicted - target) ** 2)),
        num_matches=num_matches,
        num_others=num_others,
        num_groups=len(number_of),
        source=dict(source),
    )


def _best_views(views: Floats, weights: Floats) -> Floats:
    """[N, F], the features of each candidate in its strongest view.

    views: [V, N, F], not a number where a view does not have a candidate."""
    best = np.nan_to_num(views @ weights, nan=-np.inf).argmax(axis=0)
    return np.asarray(views[best, np.arange(len(best))], np.float64)


def level_of(runs: Floats, *, num_videos: int) -> float:
    """The level of unrelated videos in one view of a query. runs: [N], of its candidates."""
    floor = LEVEL_FLOOR if num_videos >= SMALL_COLLECTION else LEVEL_FLOOR_SMALL
    unrelated = np.sort(runs)[::-1][LEVEL_PLACES]
    return max(floor, float(unrelated.mean())) if len(unrelated) else floor


def levelled(run: Floats | float, level: float) -> Floats:
    """How far a run exceeds a level below 1, divided by the square root of what is left above the
    level."""
    return np.asarray((run - level) / np.sqrt(max(1 - level, 1e-6)), np.float64)


def _levelled(features: Floats, num_videos: int, is_copy: Flags | None = None) -> Floats:
    """Features of one view of a search, those of relative kinds by how far they exceed the level.

    An unknown feature of a candidate is 0, which adds nothing. Videos that are no candidates of the
    view stay NaN.
    """
    is_candidate = ~np.isnan(features).all(axis=1)
    counts = is_candidate if is_copy is None else is_candidate & ~is_copy
    relative = features.copy()
    for column, kind in enumerate(evidence_kinds.KINDS):
        if kind.relative:
            values = features[:, column]
            level = level_of(values[counts & ~np.isnan(values)], num_videos=num_videos)
            relative[:, column] = levelled(values, level)

    relative[is_candidate] = np.nan_to_num(relative[is_candidate], nan=0.0)
    return relative
