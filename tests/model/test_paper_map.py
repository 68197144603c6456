"""docs/paper_map.md names only what exists."""

import importlib
import re
from typing import get_args

import pytest
from pydantic import BaseModel

from hapvr.ablations import read_ablations
from hapvr.config import Config
from hapvr.losses.objective import FRAME_OPTIONS, RANKING_LOSSES, loss_options
from tests.conftest import CHECKOUT

TEXT = (CHECKOUT / "docs" / "paper_map.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(hapvr(?:\.\w+)+)`", TEXT))))
def test_functions_exist(name: str) -> None:
    """Each dotted name leads to an object."""
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize(
    "key",
    sorted(
        set(
            re.findall(r"`((?:train|pseudo_labels|teacher|views|backbone|whitening)\.[\w.]+)", TEXT)
        )
    ),
)
def test_configuration_keys_exist(key: str) -> None:
    """Each key is a field of the settings it belongs to, where a section has several families of
    one of them."""
    models: list[type[BaseModel]] = [Config]
    for part in key.split("."):
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        assert fields, f"{part} of {key}"
        models = [model for field in fields for model in settings_in(field.annotation)]


def rows_of_the_four_tables() -> list[list[str]]:
    """what, where, is and test of each row, of the first section."""
    section = TEXT.partition("## Everything, in four tables")[2].partition("\n## ")[0]
    papers = section.partition("### HAP-VR, all parts")[2]
    lines = [line for line in papers.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return [row for row in rows if row[0] not in ("what", "---")]


def test_each_part_of_the_papers_says_where_it_stands() -> None:
    """Four cells; a status of the legend; a reason with what is left out; a test with what is
    equal or an option."""
    rows = rows_of_the_four_tables()
    assert len(rows) > 80
    for row in rows:
        assert len(row) == 4, row
        what, _, status, test = row
        if "reports no" in row[1]:
            continue
        kind = re.match(r"equal|option|needs data|partly|left out", status)
        assert kind is not None, what
        if kind[0] in ("partly", "left out"):
            assert len(status) > len(kind[0]) + 20, what
        if kind[0] in ("equal", "option"):
            assert test.startswith("`test_"), what


def test_the_tests_that_it_names_exist() -> None:
    code = "".join(
        path.read_text(encoding="utf-8") for path in (CHECKOUT / "tests").rglob("test_*.py")
    )
    named = {row[3].strip("`") for row in rows_of_the_four_tables()} - {""}
    assert len(named) > 40
    assert [name for name in sorted(named) if f"def {name}(" not in code] == []


def test_the_rows_that_it_names_are_in_the_file_of_ablations() -> None:
    tables = read_ablations(CHECKOUT / "configs" / "ablations.yaml")
    named = re.findall(r"`((?:s2vs|hapvr|tca|vvs)-(?:table|contr|terms)\w*)`", TEXT)
    assert set(tables) - {"short-clips", "similarity"} - set(named) <= {
        f"{paper}-table{number}"
        for paper, numbers in {
            "s2vs": range(4, 9),
            "hapvr": range(3, 12),
            "tca": ("1b", "1c", "1d", "1e"),
            "vvs": range(4, 6),
        }.items()
        for number in numbers
    }
    assert set(named) <= set(tables)


def settings_in(annotation: object) -> list[type[BaseModel]]:
    """The models of settings that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in settings_in(inner)]


def test_the_table_of_losses_is_complete() -> None:
    """Every registered loss has a row with its function and the defaults of its options."""
    rows = dict(
        re.findall(r"^\| `(\w+)` \| `hapvr\.losses\.[\w.]+` \|(.*)\|$", TEXT, flags=re.MULTILINE)
    )
    assert set(rows) == set(RANKING_LOSSES)
    for name, described in rows.items():
        stated = dict(re.findall(r"`(\w+): ([\w.-]+)`", described))
        defaults = {
            option: f"{value:g}" if isinstance(value, float) else str(value)
            for option, value in loss_options(name).items()
        }
        assert stated == defaults

    assert all(f"`{option}: {value:g}` of" in TEXT for option, value in FRAME_OPTIONS.items())
