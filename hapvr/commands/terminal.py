"""What all verbs share: results as text or JSON, progress bars, exit codes."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from hapvr.errors import FULL_HINT, ArgumentError, ConfigError, HapvrError, MissingPartError, is_installed
from hapvr.progress import Progress, no_progress

if TYPE_CHECKING:
    from hapvr.steps.project import Project

FAILED = 1
WRONG_CALL = 2
INTERRUPTED = 130
TRACEBACK_VARIABLE = "HAPVR_TRACEBACK"
SLIM_HINT = f"{FULL_HINT}, or what searches and serves with `pip install '.[search]'`"
FOREIGN = {
    "mlflow": "tracking: MLflow refuses this; check name, version and --tracking-uri",
    "sqlalchemy": "tracking: the database cannot be read; it may be damaged or from another version of MLflow",
}
"""What errors of other libraries mean here, by the package that defines them."""


def default_collection() -> Path:
    """The data root of the collection that verbs mean where none is named."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "hapvr"


ConfigOption = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        "--data",
        envvar="HAPVR_CONFIG",
        default_factory=default_collection,
        show_default="~/.local/share/hapvr",
        help="A configuration file (configs/ has those that ship), or the data root of a collection.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a configuration value, e.g. train.steps=50."),
]
IndexModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Where the index's model is, if not where the index says: a bundle folder or a models:/ name.",
    ),
]

UNSAFE = re.compile("[\0-\b\v-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but for tab and line end, directions, and bytes that are not UTF-8."""

_as_json: ContextVar[bool | None] = ContextVar("as_json", default=None)
"""Whether results are printed as JSON; None until a verb is called."""
Verb = TypeVar("Verb", bound=Callable[..., None])


def as_command(verb: Verb) -> Callable[..., None]:
    """The verb with the option --json. Errors become one message and an exit code: 2 for a wrong call, 1 for work that failed;
    with --json the message is also a JSON object on standard output."""

    @functools.wraps(verb)
    def call(*arguments: Any, as_json: bool = False, **options: Any) -> None:
        _as_json.set(as_json)
        try:
            verb(*arguments, **options)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.Abort, typer.BadParameter, SystemExit):
            raise
        except HapvrError as error:
            wrong = isinstance(error, ConfigError | ArgumentError | MissingPartError)
            fail(str(error), WRONG_CALL if wrong else FAILED)
        except BaseException as error:  # libraries written in Rust raise a PanicException, which is no Exception
            if os.environ.get(TRACEBACK_VARIABLE):
                raise
            if isinstance(error, ModuleNotFoundError) and not is_installed("torch"):
                fail(f"{str(error.name).partition('.')[0]} is not installed; {SLIM_HINT}", WRONG_CALL)
            fail(_unforeseen(error), FAILED)

    signature = inspect.signature(verb, eval_str=True)
    as_json = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption)
    signature = signature.replace(parameters=[*signature.parameters.values(), as_json])
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()}
    return call


class Verbs(typer.Typer):
    """A group of verbs, each of which becomes a command by `as_command`."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Verb], Verb]:
        """Decorator of a verb, which it leaves as it is."""

        def register(verb: Verb) -> Verb:
            super(Verbs, self).command(name, **options)(as_command(verb))
            return verb

        return register


def call_began() -> bool:
    """Whether a verb of this process was called, which a call that cannot be parsed does not reach."""
    return _as_json.get() is not None


def fail(message: str, code: int) -> NoReturn:
    """Print why a call failed and end it with this exit code."""
    if _as_json.get():
        say(json.dumps({"error": message, "exit_code": code}, ensure_ascii=False))
    say(f"error: {message}", err=True)
    raise typer.Exit(code) from None


def _unforeseen(error: BaseException) -> str:
    """A sentence about an error that no part of the program foresaw."""
    said = " ".join(str(error).split())[:300]
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object!r:.200} is not UTF-8; rename the file, or give another name"
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror}; correct the path, its permissions or the free space, and try again"
    for library, sentence in FOREIGN.items():
        if type(error).__module__.partition(".")[0] == library:
            return f"{sentence} ({said})"
    return (
        f"unexpected {type(error).__name__}: {said}. Please report it; {TRACEBACK_VARIABLE}=1 in the environment shows "
        "where it happened"
    )


def show(result: Mapping[str, Any], text: str | None = None, *, failed: bool = False) -> None:
    """Print a result: JSON for programs, text for people, by default a line for each value. failed: whether the exit code is
    FAILED, although there is a result."""
    if _as_json.get():
        text = json.dumps(result, ensure_ascii=False, default=str)
    say("\n".join(f"{name}: {value}" for name, value in result.items()) if text is None else text)
    if failed:
        raise typer.Exit(FAILED)


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text. What a file name holds to steer the terminal or to turn the line appears escaped, in JSON as JSON escapes it."""
    typer.echo(UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], text), err=err, nl=nl)


def counted(number: int, noun: str) -> str:
    """E.g. "1 video", "2,000 videos"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def overrides(values: list[str] | None) -> dict[str, Any]:
    """`--set key=value` options as a mapping; values are read as YAML. Raises ConfigError for one that is not KEY=VALUE."""
    from hapvr.config_file import read_value

    parsed: dict[str, Any] = {}
    for value in values or []:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {value!r:.120}: wanted KEY=VALUE, e.g. train.steps=50")
        parsed[key] = read_value(text, what=f"--set {key}:")
    return parsed


def open_project(config: Path, set_: list[str] | None = None) -> Project:
    """The project of a configuration, with the values of `--set`."""
    from hapvr.steps.project import Project

    return Project.open(config, overrides=overrides(set_))


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A bar on the terminal's standard error; nothing where that is not a terminal."""
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
