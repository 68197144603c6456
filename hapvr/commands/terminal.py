"""What all verbs share: options, results as text or JSON, exit codes."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from hapvr.errors import (
    FULL_HINT,
    ArgumentError,
    ConfigError,
    HapvrError,
    MissingPartError,
    is_installed,
    without_logins,
)
from hapvr.files import FULL_DISK
from hapvr.reporting import escaped, one_line

if TYPE_CHECKING:
    from hapvr.steps.project import Project

NAME = "hapvr"
PROJECT_OPTIONS = ("--config", "-c", "--data")
OF_A_PROJECT = re.compile(
    rf"`{NAME} (index (?:build|update)|download|sample|extract|duplicates|watch|verify|run \w+)`"
)
"""Commands in hints that are for one project and name none."""
OF_SEARCH = frozenset(
    (
        "anyio",
        "fastapi",
        "lance",
        "prometheus_client",
        "pyarrow",
        "safetensors",
        "starlette",
        "uvicorn",
        "yaml",
    )
)
"""Packages that the extra `search` brings."""
OF_ALL = frozenset(("download", "evaluate", "extract", "run", "sample", "train"))
"""Verbs for which that extra is not enough."""
FAILED = 1
WRONG_CALL = 2
TRACEBACK_VARIABLE = "HAPVR_TRACEBACK"


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
        help="A configuration file (configs/ has those that ship), or the data root of a "
        "collection.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Replace a configuration value, e.g. train.steps=50."
    ),
]
IndexModelOption = Annotated[
    str | None, typer.Option("--model", help="The index's model, if it is not at its place.")
]

printing_json: ContextVar[bool | None] = ContextVar("printing_json", default=None)
"""Whether results are printed as JSON; None until a verb is called, which a call that cannot be
parsed does not reach."""
Verb = TypeVar("Verb", bound=Callable[..., None])


def as_command(verb: Verb) -> Callable[..., None]:
    """The verb with the option --json. Errors become one message and an exit code: 2 for a wrong
    call, 1 for work that failed; with --json the message is also a JSON object on standard output.
    """

    @functools.wraps(verb)
    def call(*arguments: Any, as_json: bool = False, **options: Any) -> None:
        printing_json.set(as_json)
        try:
            verb(*arguments, **options)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except (typer.Exit, typer.Abort, typer.BadParameter, SystemExit):
            raise
        except HapvrError as error:
            wrong = isinstance(error, ConfigError | ArgumentError | MissingPartError)
            fail(str(error), WRONG_CALL if wrong else FAILED)
        except BaseException as error:  # Rust's PanicException is not an Exception
            if os.environ.get(TRACEBACK_VARIABLE):
                raise
            if isinstance(error, ModuleNotFoundError):
                fail(_missing_package(error, verb.__name__), WRONG_CALL)
            fail(_unforeseen(error), FAILED)

    signature = inspect.signature(verb, eval_str=True)
    option = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
    as_json = inspect.Parameter(
        "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option
    )
    signature = signature.replace(parameters=[*signature.parameters.values(), as_json])
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {
        name: parameter.annotation for name, parameter in signature.parameters.items()
    }
    return call


class Verbs(typer.Typer):
    """A group of verbs, each of which becomes a command by `as_command`."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Verb], Verb]:
        """Decorator of a verb, which it leaves as it is."""

        def register(verb: Verb) -> Verb:
            super(Verbs, self).command(name, **options)(as_command(verb))
            return verb

        return register


def require_outside(*files: Path | None) -> None:
    """Raise ArgumentError for one of the files to write that would be in a data root, where it may
    replace a record."""
    for file in filter(None, files):
        folder = file.parent.resolve()
        for root in (folder, *folder.parents):
            if _is_data_root(root):
                raise ArgumentError(f"{file} is in the data root {root}; choose a place outside")


def _is_data_root(folder: Path) -> bool:
    stages = ("manifest", "features")
    return any(any(folder.glob(f"{stage}/*/*.parquet")) for stage in stages)


def fail(message: str, code: int) -> NoReturn:
    """Print why a call failed, without logins of addresses, and end it with this exit code."""
    message = without_logins(message)
    if printing_json.get():
        say(json.dumps({"error": message, "exit_code": code}, ensure_ascii=False))
    say(f"error: {as_typed(one_line(message))}", err=True)
    raise typer.Exit(code) from None


def _missing_package(error: ModuleNotFoundError, verb: str) -> str:
    """Which package is missing, and the extra of ours with which the verb works."""
    package = str(error.name).partition(".")[0]
    hint = FULL_HINT
    if is_installed("torch"):
        hint = "install the package that has it, such as the driver of the database that you name"
    elif package in OF_SEARCH and verb not in OF_ALL:
        hint = f"install what searches and serves with `pip install '.[search]'`, or {FULL_HINT}"

    return f"{package} is not installed; {hint}"


def program() -> str:
    """What a user types to call this program: its name where that is found on the path, else the
    path by which it was called, as after `make`."""
    called = sys.argv[0]
    if os.path.basename(called) != NAME:
        return NAME  # another program, such as a test, calls its verbs
    if not os.path.isabs(called):
        return called
    on_path = shutil.which(NAME)
    return NAME if on_path and os.path.samefile(on_path, called) else called


def as_typed(text: str) -> str:
    """A text whose commands of this program can be typed as they stand: of this project, where the
    call named one, with the configuration values that it replaced."""
    option = _project_option()
    values = _values("--set")

    def typed(command: re.Match[str]) -> str:
        of_call = [] if command[1] == "verify" else values  # it takes none
        replaced = "".join(f" --set {shlex.quote(value)}" for value in of_call)
        return f"`{NAME} {command[1]}{option}{replaced}`"

    text = OF_A_PROJECT.sub(typed, text)
    return text.replace(f"`{NAME} ", f"`{program()} ")


def _project_option() -> str:
    """How the call named its project, with a blank before it; "" where it named none, or only the
    address of a registry."""
    for name in PROJECT_OPTIONS:
        for value in _values(name):
            return "" if "://" in value else f" {name} {shlex.quote(value)}"

    return ""


def _values(option: str) -> list[str]:
    """What the call gave for an option, in order."""
    arguments = sys.argv[1:]
    values = []
    for number, argument in enumerate(arguments):
        if argument == option:
            values += arguments[number + 1 : number + 2]
        elif argument.startswith(f"{option}="):
            values.append(argument.removeprefix(f"{option}="))

    return values


def _unforeseen(error: BaseException) -> str:
    """A sentence about an error that no part of the program foresaw."""
    message = without_logins(" ".join(str(error).split()))[:300]
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object!r:.200} is not UTF-8; rename the file, or give another name"
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename is not None else ""
        return (
            f"{place}{error.strerror}; correct the path, its permissions or the free "
            "space, and try again"
        )
    if any(text in message for text in FULL_DISK):
        return f"{message}; free space or correct the permissions, and try again"
    if type(error).__module__.startswith(("mlflow", "sqlalchemy")):
        # The database may be of another version.
        return f"tracking: MLflow refuses this; check name, version and --tracking-uri ({message})"

    hint = f"Please report it; {TRACEBACK_VARIABLE}=1 in the environment shows where it happened"
    return f"unexpected {type(error).__name__}: {message}. {hint}"


def show(
    result: Mapping[str, Any], text: str | Iterable[str] | None = None, *, failed: bool = False
) -> None:
    """Print a result: JSON for programs, text for people, by default a line for each value. text:
    printed as it is; of lines, none becomes two by a name in it. failed: FAILED is the exit code.
    """
    if printing_json.get():
        text = json.dumps(result, ensure_ascii=False, default=str)
    elif text is None:
        text = [f"{name}: {value}" for name, value in result.items()]

    whole = text if isinstance(text, str) else "\n".join(map(one_line, text))
    say(whole if printing_json.get() else as_typed(whole))
    if failed:
        raise typer.Exit(FAILED)


def say(text: str, *, err: bool = False) -> None:
    """Print text. Characters of file names that would steer the terminal or turn the line are
    escaped as in JSON."""
    typer.echo(escaped(text), err=err)


def counted(number: int, noun: str, plural: str = "") -> str:
    """E.g. "1 video", "2,000 videos".

    plural: where it is not the noun with an s
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def open_project(config: Path, set_: list[str] | None = None, *, row: str = "") -> Project:
    """The project of a configuration, with the settings of a row of the ablations.yaml beside it,
    and over them the values of `--set`."""
    from hapvr.ablations import read_row
    from hapvr.config_file import read_overrides
    from hapvr.steps.project import Project

    of_row = read_row(config.parent / "ablations.yaml", row) if row else {}
    return Project.open(config, overrides={**of_row, **read_overrides(set_ or [])})
