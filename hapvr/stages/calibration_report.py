"""A version's calibration for people: the curve, its thresholds, and how both do on other pairs; Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from hapvr.markdown import markdown_table
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.calibration_check import CalibrationCheck
from hapvr.stages.calibration import ModelCalibration


def calibration_markdown(calibrated: ModelCalibration, checks: Sequence[CalibrationCheck]) -> str:
    """Paragraphs and tables, or why there is no calibration. checks: on benchmarks, may be empty."""
    fitted = calibrated.calibration
    if fitted is None:
        return f"None: {calibrated.reason}. The column `probability` is empty."
    source = fitted.source
    return "\n\n".join(
        [
            f"Fitted on the pairs of {source['benchmark']}: {fitted.num_matches} matches (labels {', '.join(source['labels'])}) "
            f"and {fitted.num_others} others. P(match) = 1 / (1 + exp(-({fitted.slope:.4g} x similarity "
            f"{fitted.intercept:+.4g}))); Brier score {fitted.brier:.4f} on these same pairs.",
            f"Probabilities and thresholds hold where {100 * fitted.prior:.1f} % of the pairs that are asked about match, as "
            "there. Where matches are rarer both are too optimistic; `Calibration.probability(similarity, prior=...)` "
            "corrects for it.",
            _thresholds(fitted),
            *(_held_out(fitted, checks) if checks else []),
        ]
    )


def _thresholds(fitted: Calibration) -> str:
    rows = [
        (
            f"{row.precision:g}",
            f"{row.similarity:.4f}" if row.similarity is not None else "not reached",
            f"{row.found:.3f} (at least {row.lower:.3f})",
            f"{row.recall:.3f}",
            f"{row.num_matches} / {row.num_pairs}",
        )
        for row in fitted.thresholds
    ]
    return markdown_table(("wanted precision", "similarity from", "precision found", "recall", "matches / pairs"), rows)


def _held_out(fitted: Calibration, checks: Sequence[CalibrationCheck]) -> list[str]:
    """The thresholds on pairs that they were not chosen on."""
    briers = "; ".join(
        f"{check.name} {check.brier:.4f} ({check.num_matches} matches, {check.num_others} others)" for check in checks
    )
    rows = [
        (
            check.name,
            f"{row.wanted:g}",
            "no pair" if row.precision is None else f"{row.precision:.3f}",
            f"{row.recall:.3f}",
            f"{row.num_matches} / {row.num_pairs}",
        )
        for check in checks
        for row in check.thresholds
    ]
    return [
        f"On pairs that it was not fitted on, weighted so that {100 * fitted.prior:.1f} % match there too: Brier score {briers}.",
        markdown_table(("benchmark", "wanted precision", "precision there", "recall", "matches / pairs"), rows),
    ]
