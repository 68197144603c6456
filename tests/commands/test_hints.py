"""Hints name the command that can be typed where it was called."""

import sys
from pathlib import Path

import pytest

from hapvr.commands.terminal import as_typed

HINT = "next: `hapvr search CLIP`"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A program of that name."""
    file = tmp_path / "bin" / "hapvr"
    file.parent.mkdir()
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return file


def test_a_program_that_was_called_by_its_path_is_named_so(
    monkeypatch: pytest.MonkeyPatch, installed: Path
) -> None:
    """As after `make`, whose environment is not on the user's path."""
    monkeypatch.setattr(sys, "argv", [".venv/bin/hapvr", "index"])
    assert as_typed(HINT) == "next: `.venv/bin/hapvr search CLIP`"
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", [str(installed), "index"])
    assert as_typed(HINT) == f"next: `{installed} search CLIP`"


def test_a_program_on_the_path_is_named_by_its_name(
    monkeypatch: pytest.MonkeyPatch, installed: Path
) -> None:
    monkeypatch.setenv("PATH", str(installed.parent))
    monkeypatch.setattr(sys, "argv", [str(installed), "index"])
    assert as_typed(HINT) == HINT


def test_other_programs_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/pytest"])
    assert as_typed(HINT) == HINT


@pytest.mark.parametrize(
    ("arguments", "typed"),
    [
        pytest.param(["--config", "mine.yaml"], " --config mine.yaml", id="a configuration"),
        pytest.param(["--data=my videos"], " --data 'my videos'", id="a data root"),
        pytest.param(["-c", "mine.yaml"], " -c mine.yaml", id="the short option"),
        pytest.param(["--data", "sqlite:///mlflow.db"], "", id="a registry"),
        pytest.param(["--set", "a=b c", "--set=d=e"], " --set 'a=b c' --set d=e", id="values"),
        pytest.param([], "", id="none"),
    ],
)
def test_a_hint_names_the_project_of_the_call(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], typed: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["hapvr", "search", "clip.mp4", *arguments])
    assert as_typed("`hapvr index update` does it") == f"`hapvr index update{typed}` does it"
    assert as_typed("run `hapvr sample` first") == f"run `hapvr sample{typed}` first"
    assert as_typed("`hapvr run pseudo_labels`") == f"`hapvr run pseudo_labels{typed}`"


def test_a_hint_gives_no_value_to_a_verb_that_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hapvr", "search", "--data", "here", "--set", "a=b"])
    assert as_typed("`hapvr verify`") == "`hapvr verify --data here`"


def test_a_hint_with_options_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hapvr", "search", "clip.mp4", "--data", "here"])
    hint = "`hapvr watch --data elsewhere`"
    assert as_typed(hint) == hint
