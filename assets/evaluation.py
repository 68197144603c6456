"""Evaluation: similarities, metrics and plots of every benchmark."""

import hashlib

import dagster as dg

from assets import metadata
from assets.factory import Made, step_asset
from assets.training import training_key


def _show_scores(made: Made) -> dg.MaterializeResult:
    from hapvr.benchmark.report import metrics_markdown
    from hapvr.files import file_sha256
    from hapvr.steps.evaluation import TRAINED
    from hapvr.steps.training import trained_run

    scored, run = made.result, trained_run(made.project, training_key(made.context.run))
    files = {name: file_sha256(run.folder / "benchmarks" / name / "scores.json") for name in scored}
    digest = hashlib.sha256(
        "".join(f"{name} {file}\n" for name, file in sorted(files.items())).encode()
    ).hexdigest()
    # One number per entry: Dagster draws these over time.
    metrics = {
        f"{name}: {task.metric} {task.task}": task.value
        for name, (results, _) in scored.items()
        for task in results[TRAINED].tasks
    }
    shown = {
        f"{name}: {title}": metadata.figure(figure)
        for name, (_, figures) in scored.items()
        for title, figure in figures.items()
    }
    tables = []
    for name, (
        results,
        _,
    ) in scored.items():  # how much could be scored, and every metric of both models in percent
        counts = results[TRAINED].availability
        tables += [
            f"**{name}**: {counts['num_queries_scored']} of {counts['num_queries']} queries and "
            f"{counts['num_references_scored']} of {counts['num_references']} references scored",
            metrics_markdown({row: result.metrics for row, result in results.items()}),
        ]
    return dg.MaterializeResult(
        metadata={
            "metrics": dg.MetadataValue.md("\n\n".join(tables)),
            **metrics,
            "mlflow_run": made.resource.run_link(made.project, run.mlflow_run_id),
            "path": dg.MetadataValue.path(str(run.folder / "benchmarks")),
            "digest": digest,
            **shown,
        },
        data_version=dg.DataVersion(digest),
    )


benchmark_scores = step_asset(
    "benchmark_scores",
    _show_scores,
    group="evaluation",
    kinds={"pytorch", "mlflow"},
    arguments=lambda context: {"run": training_key(context.run)},
)
