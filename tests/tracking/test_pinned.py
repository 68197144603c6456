"""The version that an alias stands for, and versions that are deleted while others use them."""

from __future__ import annotations

import mlflow
import pytest
from mlflow.tracking import MlflowClient

from hapvr.errors import ArgumentError, DataError
from hapvr.scorer.bundle import load_bundle
from hapvr.tracking.champions import champion_of
from hapvr.tracking.packaging import read_card
from hapvr.tracking.store import pinned_uri, registered_bundle
from tests.commands.conftest import invoke
from tests.tracking.conftest import Registered


def test_an_alias_becomes_a_version(registered: Registered) -> None:
    assert pinned_uri("models:/hapvr@champion", registered.uri) == "models:/hapvr/1"
    assert pinned_uri("models:/hapvr/1", registered.uri) == "models:/hapvr/1"


def test_what_is_not_there_is_named(registered: Registered) -> None:
    for uri in ("models:/hapvr@nobody", "models:/hapvr/99"):
        with pytest.raises(DataError, match="hapvr models list"):
            pinned_uri(uri, registered.uri)
    with pytest.raises(DataError, match="no such"):
        pinned_uri("models:/hapvr@champion", "sqlite:///no such.db")
    with pytest.raises(ArgumentError, match="NAME@ALIAS"):
        pinned_uri("hapvr", registered.uri)


def test_a_champion_that_is_deleted_goes_on_where_it_is_loaded(registered: Registered) -> None:
    """MLflow keeps row and files of a deleted version, but nobody gets them any more; a loaded scorer needs neither."""
    client = MlflowClient(tracking_uri=registered.uri, registry_uri=registered.uri)
    kept = client.get_model_version_by_alias("hapvr", "champion")
    client.create_registered_model("leaving")
    mlflow.set_tracking_uri(registered.uri)  # a database looks the model up there, whatever the client's address is
    version = str(client.create_model_version("leaving", source=kept.source, run_id=kept.run_id).version)
    client.set_registered_model_alias("leaving", "champion", version)
    pinned = pinned_uri("models:/leaving@champion", registered.uri)
    scorer = load_bundle(registered_bundle(pinned, registered.uri))
    pair = (registered.clips / "a.mp4", registered.clips / "copy.mp4")
    (before,) = scorer.score_pairs([pair])

    client.delete_model_version("leaving", version)

    assert champion_of(client, "leaving") is None
    for uri in ("models:/leaving@champion", pinned):
        for ask in (registered_bundle, pinned_uri):
            with pytest.raises(DataError, match=f"{uri} is not in the registry"):
                ask(uri, registered.uri)
        scored = invoke("score", *map(str, pair), "--model", uri, "--tracking-uri", registered.uri)
        assert scored.exit_code == 1
        assert f"error: model: {uri} is not in the registry" in scored.stderr
    for named in ("champion", version):
        with pytest.raises(DataError, match=f"no leaving version {named}"):
            read_card("leaving", named, registered.uri)
    (again,) = scorer.score_pairs([pair])
    assert again == before
