"""Champions of a real registry: promoted, rolled back, deleted; what stays written down."""

from __future__ import annotations

import pytest
from mlflow.tracking import MlflowClient

from hapvr.errors import ArgumentError, DataError
from hapvr.tracking.champions import CHALLENGER, champion_of, history, promote, rollback, set_champion, version_tags
from hapvr.tracking.registry import register
from hapvr.tracking.runs import Tracker
from tests.tracking.empty_store import new_store


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Tracker:
    """A store that all tests share, under model names of their own."""
    folder = tmp_path_factory.mktemp("mlflow")
    return Tracker(new_store(folder), "tests", artifacts=folder / "artifacts")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A model name that no other test uses."""
    return str(request.node.name)


def add_version(tracker: Tracker, name: str) -> int:
    """A version of a run of its own; nothing is ever loaded from it."""
    number = len(tracker.client.search_runs([tracker.experiment_id]))
    run = tracker.start(f"run-{number}", name=f"run {number}", params={}, tags={})
    return register(
        tracker, name, run_id=run, model_uri=f"runs:/{run}/model", target=0.5, tags={"data.digest": f"digest {number}"}
    )


def test_registering_a_run_twice_keeps_its_version(tracker: Tracker, name: str) -> None:
    """A repeated registration finds the version it made, and the challenger alias points at the newest."""
    first = add_version(tracker, name)
    run = tracker.client.get_model_version(name, str(first)).run_id
    again = register(tracker, name, run_id=run, model_uri=f"runs:/{run}/model", target=0.6, tags={})
    second = add_version(tracker, name)
    assert (first, again, second) == (1, 1, 2)
    assert int(tracker.client.get_model_version_by_alias(name, CHALLENGER).version) == 2
    assert version_tags(tracker.client, name, 1)["hapvr.target_mean"] == "0.600000"


def test_no_model_and_no_alias_are_no_champion(tracker: Tracker, name: str) -> None:
    """An empty registry and a model without the alias: None, not an error."""
    assert champion_of(tracker.client, name) is None
    add_version(tracker, name)
    assert champion_of(tracker.client, name) is None


def test_deleted_champion_is_no_champion_and_rollback_passes_over_it(tracker: Tracker, name: str) -> None:
    """Version 2 is deleted while champion: there is no champion until a rollback goes to 1."""
    for version in (add_version(tracker, name), add_version(tracker, name)):
        set_champion(tracker.client, name, version, how="gate", reason="better")
    tracker.client.delete_model_version(name, "2")
    assert champion_of(tracker.client, name) is None
    assert rollback(tracker.client, name, reason="2 is gone") == 1
    champion = champion_of(tracker.client, name)
    assert champion is not None
    assert champion.version == 1


def test_rollbacks_go_back_one_reign_at_a_time(tracker: Tracker, name: str) -> None:
    """1, 2, 3 by the gate; back to 2, back to 1, no further; then 3 by hand, and back to 1 again."""
    client = tracker.client
    for version in [add_version(tracker, name) for _ in range(3)]:
        set_champion(client, name, version, how="gate", reason="better")
    assert rollback(client, name, reason="bad on news") == 2
    assert rollback(client, name, reason="bad too") == 1
    with pytest.raises(DataError, match="no earlier champion"):
        rollback(client, name, reason="further")
    ended = promote(client, name, 3, reason="looked at by hand")
    assert ended is not None
    assert ended.version == 1
    assert rollback(client, name, reason="no") == 1
    assert [entry.how for entry in history(client, name)] == [
        "gate", "gate", "gate", "rollback", "rollback", "hand", "rollback",
    ]  # fmt: skip
    assert version_tags(client, name, 3)["hapvr.gate.reason"] == "looked at by hand"


def test_promoting_what_is_not_there_or_champion_already_is_refused(tracker: Tracker, name: str) -> None:
    """Both messages name the version."""
    add_version(tracker, name)
    promote(tracker.client, name, 1, reason="first")
    with pytest.raises(ArgumentError, match=f"version 1 of {name} is champion already"):
        promote(tracker.client, name, 1, reason="again")
    with pytest.raises(DataError, match="no version 9"):
        promote(tracker.client, name, 9, reason="absent")


def test_history_survives_a_new_client(tracker: Tracker, name: str) -> None:
    """It lies in the registry, not in the process."""
    add_version(tracker, name)
    set_champion(tracker.client, name, 1, how="gate", reason="first")
    (entry,) = history(MlflowClient(tracking_uri=tracker.uri, registry_uri=tracker.uri), name)
    assert (entry.version, entry.how) == (1, "gate")


def test_a_damaged_history_is_named(tracker: Tracker, name: str) -> None:
    """The tag is a text that any program may set."""
    version = add_version(tracker, name)
    for text in ("[[1]]", "{}", "[" * 4000, '[["x", "2026", "hand"]]', "5", "x"):
        tracker.client.set_registered_model_tag(name, "hapvr.champions", text)
        with pytest.raises(DataError, match=r"the tag hapvr\.champions of .* is damaged .*delete the tag"):
            set_champion(tracker.client, name, version, how="hand", reason="")
