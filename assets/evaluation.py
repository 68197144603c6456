"""Evaluation: similarities, metrics and plots of every benchmark."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import dagster as dg

from assets import metadata
from assets.factory import Made, step_asset
from assets.training import training_key


def _show_scores(made: Made) -> dg.MaterializeResult:
    from hapvr.benchmark.report import metrics_markdown
    from hapvr.steps.evaluation import TRAINED
    from hapvr.steps.training import trained_run

    scored = made.result
    run = trained_run(made.project, training_key(made.context.run))
    digest = _digest(run.folder / "benchmarks", scored)

    metrics: dict[str, float] = {}  # a number per entry: Dagster draws these over time
    figures: dict[str, dg.MarkdownMetadataValue] = {}
    tables = []
    for name, (results, plots) in scored.items():
        trained = results[TRAINED]
        metrics |= {f"{name}: {task.metric} {task.task}": task.value for task in trained.tasks}
        figures |= {f"{name}: {title}": metadata.figure(plot) for title, plot in plots.items()}
        counts = trained.availability
        tables.append(
            f"**{name}**: {counts['num_queries_scored']} of {counts['num_queries']} queries and "
            f"{counts['num_references_scored']} of {counts['num_references']} references scored"
        )
        tables.append(metrics_markdown({row: result.metrics for row, result in results.items()}))

    return dg.MaterializeResult(
        metadata={
            "metrics": dg.MetadataValue.md("\n\n".join(tables)),
            **metrics,
            "mlflow_run": made.resource.run_link(made.project, run.mlflow_run_id),
            "path": dg.MetadataValue.path(str(run.folder / "benchmarks")),
            "digest": digest,
            **figures,
        },
        data_version=dg.DataVersion(digest),
    )


def _digest(folder: Path, names: Iterable[str]) -> str:
    """A digest of the stored scores of these benchmarks."""
    from hapvr.files import file_sha256

    lines = [f"{name} {file_sha256(folder / name / 'scores.json')}\n" for name in sorted(names)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


benchmark_scores = step_asset(
    "benchmark_scores",
    _show_scores,
    group="evaluation",
    kinds={"pytorch", "mlflow"},
    arguments=lambda context: {"run": training_key(context.run)},
)
