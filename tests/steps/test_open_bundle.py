"""A searcher opens its bundle once, and passes it on."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hapvr.registry import client
from hapvr.scorer.description import EVIDENCE_FILE, SCORER_FILE
from hapvr.search.current import current_index, write_current
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from tests.steps.search_projects import copied, register_bundle

OPENED: list[Counter[str]] = []
"""Counters of the names of files that are opened, each while it is in the list."""


def note_opened_file(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and OPENED and isinstance(arguments[0], str | bytes | Path):
        OPENED[-1][Path(str(arguments[0])).name] += 1


sys.addaudithook(note_opened_file)


@pytest.fixture
def registered(searchable: Path, tmp_path: Path) -> Project:
    """A project whose index names its champion in the registry."""
    project = copied(searchable, tmp_path)
    version = register_bundle(project, searchable / "bundle-0")
    index = replace(current_index(project.root), model=f"models:/hapvr/{version}")
    write_current(project.root, index)
    return project


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the registry is asked for from now on."""
    uris = list[str]()
    ask = client.registered_version

    def note_and_ask(uri: str, tracking_uri: str) -> Any:
        uris.append(uri)
        return ask(uri, tracking_uri)

    monkeypatch.setattr(client, "registered_version", note_and_ask)
    return uris


def opened_files(project: Project, model: str | None = None) -> Counter[str]:
    """How often a file of each name is opened while a searcher is."""
    OPENED.append(Counter())
    try:
        Searcher.open(project, model=model)
    finally:
        opened = OPENED.pop()

    return opened


def test_records_of_the_bundle_are_read_once(registered: Project) -> None:
    opened = opened_files(registered)
    assert {name: opened[name] for name in (SCORER_FILE, EVIDENCE_FILE)} == {
        SCORER_FILE: 1,
        EVIDENCE_FILE: 2,  # once for its digest
    }


def test_the_registry_is_asked_for_the_model_and_for_the_champion(
    registered: Project, asked: list[str]
) -> None:
    """The champion may be another version than the one that the index names."""
    opened_files(registered)
    assert asked == [current_index(registered.root).model, "models:/hapvr@champion"]


def test_a_model_that_is_named_is_asked_for_once(registered: Project, asked: list[str]) -> None:
    """An alias, too, although answers name its version."""
    opened_files(registered, model="models:/hapvr@champion")
    assert asked == ["models:/hapvr@champion"]
