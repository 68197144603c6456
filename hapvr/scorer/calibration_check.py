"""Does a calibration hold on labelled pairs that it was not fitted on?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hapvr.errors import ArgumentError
from hapvr.scorer.calibration import Calibration


@dataclass(frozen=True, kw_only=True)
class CheckedThreshold:
    """wanted: the precision that the threshold was chosen for; precision: what it gives here, None where no pair reaches it;
    recall: of the matches here; num_pairs, num_matches: at or above it, as they come."""

    wanted: float
    similarity: float
    precision: float | None
    recall: float
    num_pairs: int
    num_matches: int


@dataclass(frozen=True, kw_only=True)
class CalibrationCheck:
    """On one set of pairs. prior: share of matches among them; brier and precisions are weighted to the share of the fit,
    which is what the calibration speaks of."""

    name: str
    prior: float
    num_matches: int
    num_others: int
    brier: float
    thresholds: tuple[CheckedThreshold, ...]


def check_calibration(name: str, calibration: Calibration, matches: ArrayLike, others: ArrayLike) -> CalibrationCheck:
    """Check on similarities of matching pairs and of others, each [K], K >= 1, finite. Raises ArgumentError for anything else."""
    positive, negative = (np.asarray(values, np.float64).ravel() for values in (matches, others))
    if not len(positive) or not len(negative) or not np.isfinite(np.concatenate([positive, negative])).all():
        raise ArgumentError(f"calibration check {name}: wanted matching and other pairs, all finite")
    prior = len(positive) / (len(positive) + len(negative))
    weight, other_weight = calibration.prior / len(positive), (1 - calibration.prior) / len(negative)
    error = weight * np.sum((1 - calibration.probabilities(positive)) ** 2)
    error += other_weight * np.sum(calibration.probabilities(negative) ** 2)
    rows = []
    for row in calibration.thresholds:
        if row.similarity is None:
            continue
        hits, alarms = int((positive >= row.similarity).sum()), int((negative >= row.similarity).sum())
        rows.append(
            CheckedThreshold(
                wanted=row.precision,
                similarity=row.similarity,
                precision=weight * hits / (weight * hits + other_weight * alarms) if hits + alarms else None,
                recall=hits / len(positive),
                num_pairs=hits + alarms,
                num_matches=hits,
            )
        )
    return CalibrationCheck(
        name=name,
        prior=prior,
        num_matches=len(positive),
        num_others=len(negative),
        brier=float(error),
        thresholds=tuple(rows),
    )


def checked_metrics(checks: Sequence[CalibrationCheck]) -> dict[str, float]:
    """What a tracker keeps: `calibration/<name>/brier`, and precision and recall at each wanted precision."""
    values = {f"calibration/{check.name}/brier": check.brier for check in checks}
    for check in checks:
        for row in check.thresholds:
            place = f"calibration/{check.name}/at-{row.wanted:g}"
            values[f"{place}/recall"] = row.recall
            if row.precision is not None:
                values[f"{place}/precision"] = row.precision
    return values
