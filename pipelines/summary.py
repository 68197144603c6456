"""What the demo prints at its end: one table, the registered version, what was lost, where to look."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from hapvr.stages.project import Project


def print_summary(project: "Project", console: Console) -> None:
    """The current model's scores beside the baseline's, from what the stages stored."""
    from hapvr.stages.evaluation import BASELINE, TRAINED, stored_scores
    from hapvr.stages.summary import summarize
    from hapvr.stages.training import current_run

    summary = summarize(project)
    run = current_run(project)
    for name in project.config.evaluation.benchmarks:
        data = stored_scores(project, run, name)
        rows = data["results"]
        tasks = list(next(iter(rows.values()))["metrics"])
        table = Table(title=f"{name} (policy {project.config.evaluation.policy}): mAP of *SR, micro-AP of *SD, in %")
        table.add_column("")
        for task in (*tasks, "mean"):
            table.add_column(task, justify="right")
        for row, result in rows.items():
            values = [*result["metrics"].values(), data["target_means"][row]]
            table.add_row(row, *(f"{100 * value:.2f}" for value in values))
        console.print(table)
        baseline, trained = (data["target_means"][row] for row in (BASELINE, TRAINED))
        if trained <= baseline:
            console.print(
                f"The trained model does not beat the untrained baseline on {name}: {100 * trained:.2f} against "
                f"{100 * baseline:.2f}. More training videos, published weights or more views usually help."
            )
    console.print(f"seed {project.config.train.seed}; other seeds were not run")
    for line in summary.lines:
        console.print(line, markup=False, highlight=False)
