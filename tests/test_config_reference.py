"""docs/configuration.md is what the models say."""

from __future__ import annotations

from hapvr.config import Config
from hapvr.config_reference import markdown
from hapvr.settings import GateConfig
from tests.conftest import CHECKOUT


def test_the_committed_reference_is_current() -> None:
    """`make docs` writes it; this fails after a change of hapvr/config.py without that."""
    committed = (CHECKOUT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert committed == markdown(), "docs/configuration.md is old; run `make docs`"


def test_every_key_of_every_section_is_there() -> None:
    """Top-level keys, nested ones and those of each kind of source, with limits and defaults."""
    text = markdown()
    for name in Config.model_fields:
        assert f"| `{name}` |" in text
    for name in GateConfig.model_fields:
        assert f"| `{name}` |" in text
    assert "## `evaluation.gate`" in text
    assert "## `sources` with `kind: own_videos`" in text
    assert "| `confidence` | number, ≥ 0.5, < 1 | `0.95` |" in text
    assert "| `device` | `auto` or `cpu` or `cuda` | `auto` |" in text
