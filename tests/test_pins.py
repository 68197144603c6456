"""What others build on stays as it is: verbs and options, keys of stored files, fields of answers.

After a change that is wanted, write the pins anew, and read what `git diff` shows:

HAPVR_WRITE_PINS=1 .venv/bin/python -m pytest tests/test_pins.py
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image

from hapvr.cli import app
from hapvr.scorer.description import EVIDENCE_FILE, SCORER_FILE
from hapvr.search.current import CURRENT, current_index
from hapvr.search.frame_index import STATE_FILE
from hapvr.search.match import Part, answer_values
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher, SearchOptions
from tests.conftest import GOLDEN
from tests.scorer.bundles import scene, write_scenes
from tests.steps.search_projects import LONG

PINS = GOLDEN / "pins"
WRITE = bool(os.environ.get("HAPVR_WRITE_PINS"))


def check(name: str, value: Any) -> None:
    """Compare a value with its pin, or write the pin."""
    pin = PINS / f"{name}.json"
    if WRITE:
        pin.parent.mkdir(exist_ok=True)
        pin.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    assert value == json.loads(pin.read_text(encoding="utf-8"))


def outline(value: Any) -> Any:
    """The keys of a JSON value and the types behind them. Elements of a list are merged, and so are
    values under names of files and shards."""
    if isinstance(value, dict):
        outlines = {key: outline(inner) for key, inner in value.items()}
        named = any(not key.isidentifier() for key in outlines)
        return {"*": merged(outlines.values())} if named else outlines

    if isinstance(value, list):
        return [merged(map(outline, value))]
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "null" if value is None else "string"


def merged(outlines: Iterable[Any]) -> Any:
    """One outline that fits all: objects have every key, other values name every type."""
    objects: dict[str, list[Any]] = {}
    others: list[Any] = []
    for each in outlines:
        if isinstance(each, dict):
            for key, inner in each.items():
                objects.setdefault(key, []).append(inner)
        elif each not in others:
            others.append(each)

    if objects:
        return {key: merged(inner) for key, inner in objects.items()}
    if all(isinstance(each, str) for each in others):
        return " or ".join(sorted(others))
    return [merged(inner for each in others for inner in each)]


def parameters(command: Any) -> list[str]:
    """Each argument and option of a verb: its spellings, and whether it takes values."""
    described = []
    for parameter in command.params:
        spellings = " ".join([*parameter.opts, *parameter.secondary_opts])
        if parameter.multiple or parameter.nargs != 1:
            values = " VALUES"
        else:
            values = "" if getattr(parameter, "is_flag", False) else " VALUE"

        described.append(f"{spellings}{values}{' (required)' if parameter.required else ''}")

    return sorted(described)


def verbs(command: Any, name: str) -> dict[str, list[str]]:
    """The parameters of a command and of all that are below it, by the words that call them."""
    verb_parameters = {name: parameters(command)}
    for word, inner in getattr(command, "commands", {}).items():
        verb_parameters |= verbs(inner, f"{name} {word}")
    return verb_parameters


def test_verbs_and_options() -> None:
    """The tree of `hapvr --help`."""
    check("commands", verbs(typer.main.get_command(app), "hapvr"))


@pytest.fixture(scope="module")
def project(searchable: Path) -> Project:
    """Only to be read."""
    return Project.open(searchable / "config.yaml", folder=searchable)


@pytest.mark.parametrize("name", ["evidence", "scorer", "index", "current"])
def test_keys_of_stored_files(name: str, searchable: Path, project: Project) -> None:
    """Keys and types in the JSON of a bundle and of an index, as the steps wrote them."""
    place = current_index(project.root).place
    files = {
        "evidence": searchable / "bundle-0" / EVIDENCE_FILE,
        "scorer": searchable / "bundle-0" / SCORER_FILE,
        "index": project.root.local_path(f"{place}/{STATE_FILE}"),
        "current": project.root.local_path(CURRENT),
    }
    content = json.loads(files[name].read_text(encoding="utf-8"))
    check(name, outline(content))


def test_fields_of_answers(project: Project, tmp_path: Path) -> None:
    """Four searches as JSON: a file, a part of it, a picture, and a video of the collection. Their
    numbers are promised by other tests."""
    searcher = Searcher.open(project)
    clip = write_scenes(tmp_path / "query.mp4", [500, 501, *LONG[25:31], 502, 503])
    picture = tmp_path / "picture.png"
    Image.fromarray(np.asarray(scene(LONG[20]))).save(picture)
    answers = {
        "file": searcher.search(clip),
        "part": searcher.search(clip, SearchOptions(part=Part(start_s=2.0, end_s=8.0))),
        "picture": searcher.search(picture),
        "id": searcher.search_id("in/short.mp4"),
    }
    shown = {
        name: json.loads(json.dumps(answer_values([answer]))) for name, answer in answers.items()
    }
    check("answers", outline(shown))
