"""docs/paper_map.md names only what exists."""

import importlib
import re
from typing import get_args

import pytest
from pydantic import BaseModel

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
