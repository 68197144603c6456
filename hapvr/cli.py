"""`hapvr`: every step and every question from the command line. 0: fine, 1: the work failed, 2: the call was wrong."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from hapvr import __version__
from hapvr.commands import terminal

VERBS = {
    "benchmarks": "evaluation:app",
    "features": "stages:features",
    "forget": "stages:forget",
    "index": "index:app",
    "models": "models:app",
    "pairs": "pairs:app",
    "score": "scoring:score",
    "search": "search:search",
    "duplicates": "search:duplicates",
    "watch": "search:watch",
    "serve": "search:serve",
    "evaluate": "evaluation:evaluate",
    "run": "stages:run",
    "status": "stages:status",
    "download": "stages:download",
    "sample": "stages:sample",
    "extract": "stages:extract",
    "train": "stages:train",
    "verify": "stages:verify",
}
"""Verb or group of verbs -> `module:name` below hapvr.commands, imported when it is called."""


class _LoadedVerbs(Mapping[str, Any]):
    def __getitem__(self, name: str) -> Any:
        module, _, function = VERBS[name].partition(":")
        found = getattr(import_module(f"hapvr.commands.{module}"), function)
        if not isinstance(found, typer.Typer):
            verb, found = found, terminal.Verbs(add_completion=False, pretty_exceptions_enable=False)
            found.command(name)(verb)
        command = typer.main.get_command(found)
        command.name = name
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class _Hapvr(TyperGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = _LoadedVerbs()


app = typer.Typer(cls=_Hapvr, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


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
