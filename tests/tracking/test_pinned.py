"""The version that an alias stands for."""

from __future__ import annotations

import pytest

from hapvr.errors import ArgumentError, DataError
from hapvr.tracking.store import pinned_uri
from tests.tracking.conftest import Registered


def test_an_alias_becomes_a_version(registered: Registered) -> None:
    assert pinned_uri("models:/hapvr@champion", registered.uri) == "models:/hapvr/1"
    assert pinned_uri("models:/hapvr/1", registered.uri) == "models:/hapvr/1"


def test_what_is_not_there_is_named(registered: Registered) -> None:
    with pytest.raises(DataError, match="hapvr models list"):
        pinned_uri("models:/hapvr@nobody", registered.uri)
    with pytest.raises(DataError, match="no such"):
        pinned_uri("models:/hapvr@champion", "sqlite:///no such.db")
    with pytest.raises(ArgumentError, match="NAME@ALIAS"):
        pinned_uri("hapvr", registered.uri)
