"""`hapvr`: every step and every question from the command line. 0: fine, 1: the work failed, 2: the call was wrong."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import typer

from hapvr import __version__
from hapvr.commands import (
    benchmarks,
    evaluation,
    index,
    models,
    pairs,
    scoring,
    search,
    serving,
    stages,
    terminal,
)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
app.add_typer(benchmarks.app, name="benchmarks")
app.add_typer(stages.features, name="features")
app.add_typer(index.app, name="index")
app.add_typer(models.app, name="models")
app.add_typer(pairs.app, name="pairs")
app.command()(scoring.score)
app.command()(search.search)
app.command()(search.duplicates)
app.command()(search.watch)
app.command()(serving.serve)
app.command()(evaluation.evaluate)
app.command()(stages.run)
app.command()(stages.status)
app.command()(stages.download)
app.command()(stages.sample)
app.command()(stages.extract)
app.command()(stages.train)
app.command()(stages.verify)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True)) -> None:
    """Find copies, edits and other footage of the same incident."""


def _say_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    """Our own warnings as a line for people; those of libraries speak to programmers, and are left out."""
    if issubclass(category, UserWarning) and Path(filename).is_relative_to(Path(__file__).parent):
        terminal.say(f"warning: {message}", err=True)


def main() -> None:
    """Entry point of the console script. With --json a call that cannot be parsed gives a JSON object too."""
    warnings.showwarning = _say_warning
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")  # libraries do not report on their own work
    logging.getLogger("timm").setLevel(logging.ERROR)
    try:
        app()
    except SystemExit as ended:
        if ended.code == terminal.WRONG_CALL and "--json" in sys.argv[1:] and not terminal.call_began():
            message = "this call is not understood; standard error says why"
            typer.echo(json.dumps({"error": message, "exit_code": ended.code}))
        raise
