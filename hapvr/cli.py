"""`hapvr`: every step and every question from the command line. 0: fine, 1: the work failed, 2: the
call was wrong."""

import io
import json
import os
import sys
from collections.abc import Callable

import typer

from hapvr import __version__
from hapvr.commands import (
    duplicates,
    evaluation,
    index,
    models,
    pdq,
    scoring,
    search,
    stages,
    terminal,
)
from hapvr.processors import prepare_program
from hapvr.reporting import report_for_people

VERBS: list[Callable[..., None]] = [
    scoring.score,
    search.search,
    duplicates.duplicates,
    search.watch,
    search.serve,
    evaluation.evaluate,
    stages.run,
    stages.status,
    stages.download,
    stages.sample,
    stages.extract,
    stages.train,
    stages.verify,
    stages.forget,
]

app = terminal.Verbs(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
for group in (evaluation.app, stages.features, index.app, models.app, index.pairs, pdq.app):
    group.callback()(lambda: None)  # without one, a group of one verb would be that verb
    app.add_typer(group)
for verb in VERBS:
    app.command()(verb)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True),
) -> None:
    """Find copies, edits and other footage of the same incident."""


def main() -> None:
    """Entry point of the console script. With --json a call that cannot be parsed gives a JSON
    object too."""
    # Whoever calls may have closed them.
    sys.stdout = sys.stdout or io.StringIO()
    sys.stderr = sys.stderr or io.StringIO()
    report_for_people()
    prepare_program()
    try:
        app()
    except SystemExit as ended:
        was_parsed = terminal.printing_json.get() is not None
        if ended.code == terminal.WRONG_CALL and "--json" in sys.argv[1:] and not was_parsed:
            message = "this call is not understood; standard error says why"
            typer.echo(json.dumps({"error": message, "exit_code": ended.code}))

        raise
    except OSError as error:
        # What is buffered would fail again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(
            f"error: standard output cannot be written ({error.strerror}); correct it, and "
            "try again"
        )
