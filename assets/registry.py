"""Registry: the trained model as a version, challenger first, champion if the gate passes."""

from typing import TYPE_CHECKING, Any

import dagster as dg

from assets import metadata
from assets.factory import Made, step_asset
from assets.training import training_key

if TYPE_CHECKING:
    from hapvr.steps.gate import Decision

BETTER = "better_on_the_target"
NOT_WORSE = "no_required_metric_worse"
HINT = (
    "Nothing is broken: the champion keeps serving. Look at `comparison` and at the two "
    "MLflow runs; `hapvr models promote VERSION` overrules the gate, `hapvr models rollback` "
    "goes back."
)


def _show_version(made: Made) -> dg.MaterializeResult:
    from hapvr.files import file_sha256
    from hapvr.scorer.description import SCORER_FILE

    result = made.result
    decision = result.decision
    digest = file_sha256(result.bundle / SCORER_FILE)
    entries: dict[str, Any] = {}
    if result.warning:
        entries["warning"] = result.warning
    entries["name"] = result.name
    entries["version"] = result.version
    entries["version_page"] = made.resource.version_link(made.project, result.name, result.version)
    entries["champion"] = decision.promoted
    entries["decision"] = decision.reason
    entries["mean_target_metric"] = result.target
    runs = {"mlflow_run": result.run.mlflow_run_id, "compared_with_run": decision.champion_run}
    for name, run in runs.items():
        if run:
            entries[name] = made.resource.run_link(made.project, run)

    entries["path"] = dg.MetadataValue.path(str(result.bundle))
    entries["digest"] = digest
    entries["model_card"] = dg.MetadataValue.md(result.card)
    if decision.verdict:
        entries["comparison"] = _comparison(decision)
    if result.figure:
        entries["calibration"] = metadata.figure(result.figure)
    return dg.MaterializeResult(
        metadata=entries,
        data_version=dg.DataVersion(digest),
        check_results=_checks(decision),
    )


def _comparison(decision: "Decision") -> dg.TableMetadataValue:
    import polars as pl

    assert decision.verdict is not None
    rows = [
        {
            "metric": row.name,
            f"champion (version {decision.champion})": round(100 * row.champion, 2),
            "challenger": round(100 * row.challenger, 2),
            "difference": round(100 * row.value, 2),
            "interval": f"{100 * row.interval[0]:+.2f} to {100 * row.interval[1]:+.2f}",
            "worse": row.name in decision.verdict.worse,
        }
        for row in (decision.verdict.target, *decision.verdict.metrics)
    ]
    return metadata.table(pl.DataFrame(rows))


def _checks(decision: "Decision") -> list[dg.AssetCheckResult]:
    """Both checks. If there was nothing to compare, neither passes, and the reason of the decision
    says why."""
    verdict = decision.verdict
    passed = {
        BETTER: verdict is not None and verdict.better,
        NOT_WORSE: verdict is not None and not verdict.worse,
    }
    return [
        dg.AssetCheckResult(
            check_name=name,
            passed=is_passed,
            severity=dg.AssetCheckSeverity.WARN,
            description=decision.reason,
            metadata={} if is_passed or verdict is None else {"hint": HINT},
        )
        for name, is_passed in passed.items()
    ]


registered_model = step_asset(
    "registered_model",
    _show_version,
    group="registry",
    kinds={"mlflow"},
    checks={
        BETTER: "The mean of the target metrics is higher than the champion's.",
        NOT_WORSE: "No required metric is lower than the champion's.",
    },
    arguments=lambda context: {
        "run": training_key(context.run),
        "tags": {"dagster.run_id": training_key(context.run)},
    },
)
