"""What all verbs share: results as text or JSON, progress bars, exit codes."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from hapvr.errors import ArgumentError, ConfigError, HapvrError
from hapvr.progress import Progress, no_progress

if TYPE_CHECKING:
    from hapvr.storage.filesystem import DataRoot

FAILED = 1
WRONG_CALL = 2

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="The configuration file; configs/ has those that ship.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a configuration value, e.g. train.steps=50."),
]

Verb = TypeVar("Verb", bound=Callable[..., None])


def exit_codes(verb: Verb) -> Verb:
    """Errors raised on purpose become one message and an exit code: 2 for a wrong call, 1 for work that failed."""

    @functools.wraps(verb)
    def call(*arguments: Any, **options: Any) -> None:
        try:
            verb(*arguments, **options)
        except HapvrError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(WRONG_CALL if isinstance(error, ConfigError | ArgumentError) else FAILED) from None

    return call  # type: ignore[return-value]


def show(result: Mapping[str, Any], *, as_json: bool, text: str) -> None:
    """Print a result: JSON for programs, text for people."""
    typer.echo(json.dumps(result, ensure_ascii=False, default=str) if as_json else text)


def overrides(values: list[str] | None) -> dict[str, Any]:
    """`--set key=value` options as a mapping; values are read as YAML. Raises ConfigError for one without `=`."""
    import yaml

    parsed: dict[str, Any] = {}
    for value in values or []:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {value!r}: wanted KEY=VALUE, e.g. train.steps=50")
        parsed[key] = yaml.safe_load(text)
    return parsed


def data_root(place: str | None, config: Path | None, *, option: str) -> DataRoot:
    """The data root at `place` (a folder, a URL, or the folder `features` in it), or that of a configuration.

    option: what `place` is called, for the ArgumentError where both or neither are given.
    """
    from hapvr.storage.features import STAGE
    from hapvr.storage.filesystem import DataRoot

    if (place is None) == (config is None):
        raise ArgumentError(f"{option} and --config: wanted one of the two, got {'none' if place is None else 'both'}")
    if config is not None:
        from hapvr.stages.project import Project

        return Project.open(config).root
    root = DataRoot(str(place))
    above, _, last = root.url.rstrip("/").rpartition("/")
    return DataRoot(above or ".") if last == STAGE and not root.list_folders(STAGE) else root


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A bar on the terminal's standard error; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield no_progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with RichProgress(*columns, console=Console(file=sys.stderr), transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total, _=0: bars.update(task, completed=done, total=total or None)
