"""docs/configuration.md is what the models say."""

from __future__ import annotations

from hapvr.config_reference import markdown
from tests.conftest import CHECKOUT


def test_the_committed_reference_is_current() -> None:
    """`make docs` writes it; this fails after a change of hapvr/config.py without that."""
    committed = (CHECKOUT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert committed == markdown(), "docs/configuration.md is old; run `make docs`"
