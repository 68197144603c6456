"""The command line as its users call it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import typer
from click.testing import CliRunner, Result

from hapvr.cli import app

COMMAND = typer.main.get_command(app)


@dataclass(frozen=True)
class Outcome:
    """Exit code, standard output and standard error of one call."""

    code: int
    out: str
    error: str

    @property
    def json(self) -> Any:
        """The output of a call with --json."""
        return json.loads(self.out)


Call = Callable[..., Outcome]


def invoke(*arguments: str) -> Result:
    """Call `hapvr` in this process. The command is built once: that takes 25 ms, and a call less
    than one."""
    return CliRunner().invoke(COMMAND, arguments)


def called(*arguments: object) -> Outcome:
    """Runs `hapvr` with these arguments; an exception that no verb expects is raised."""
    result = invoke(*map(str, arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def call() -> Call:
    """Runs `hapvr` with these arguments; an exception that no verb expects fails the test."""
    return called
