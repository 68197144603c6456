"""Champions: promotions, rollbacks, and both when they are killed."""

from collections.abc import Callable
from functools import partial

import pytest
from mlflow.tracking import MlflowClient

from hapvr.errors import DataError
from hapvr.registry.champions import NUMBER_TAG, SINCE_TAG, champion_of, promote, rollback
from hapvr.registry.runs import Tracker
from hapvr.registry.versions import version_tags
from tests.registry.conftest import add_version


@pytest.mark.slow
def test_rollbacks_go_back_one_champion_at_a_time(tracker: Tracker, name: str) -> None:
    """1, 2, 3 by the gate; back to 2, back to 1, no further; then 3 by hand, and back to 1 again.
    It is all written down."""
    client = tracker.client
    for version in [add_version(tracker, name) for _ in range(3)]:
        promote(client, name, version, how="gate", reason="better")
    assert rollback(client, name, reason="bad on news") == 2
    assert rollback(client, name, reason="bad too") == 1
    with pytest.raises(DataError, match="no earlier champion"):
        rollback(client, name, reason="further")
    assert promote(client, name, 3, reason="looked at by hand") == 1
    with pytest.raises(DataError, match="version 9"):
        promote(client, name, 9, reason="absent")
    assert rollback(client, name, reason="no") == 1
    fresh_client = MlflowClient(tracking_uri=tracker.uri, registry_uri=tracker.uri)
    decisions = [
        version_tags(fresh_client, name, version)["hapvr.gate.decision"] for version in (1, 2, 3)
    ]
    replaced = "was champion; version 1 replaced it by rollback"
    assert decisions == ["champion by rollback", replaced, replaced]
    assert version_tags(fresh_client, name, 3)["hapvr.gate.reason"] == "looked at by hand"


@pytest.mark.slow
def test_rollbacks_go_by_promotions_and_not_by_clocks(tracker: Tracker, name: str) -> None:
    """The clock was a year ahead when version 2 became champion, and is right again for 3."""
    client = tracker.client
    for version in [add_version(tracker, name) for _ in range(4)]:
        promote(client, name, version, how="gate", reason="better")
    client.set_model_version_tag(name, "2", SINCE_TAG, "2099-01-01T00:00:00+00:00")
    client.set_model_version_tag(name, "4", SINCE_TAG, "1999-01-01T00:00:00+00:00")
    assert [rollback(client, name, reason="bad") for _ in range(3)] == [3, 2, 1]
    assert promote(client, name, 2, reason="good after all") == 1
    assert promote(client, name, 4, reason="better") == 2
    assert rollback(client, name, reason="bad") == 2


@pytest.mark.slow
def test_a_champion_that_was_set_by_hand_in_mlflow(tracker: Tracker, name: str) -> None:
    """It has no number: a rollback leads to the last that has one, and a tag that is no number
    counts as none."""
    client = tracker.client
    versions = [add_version(tracker, name) for _ in range(4)]
    for version in versions[:2]:
        promote(client, name, version, how="gate", reason="better")
    client.set_registered_model_alias(name, "champion", "3")
    client.set_model_version_tag(name, "4", NUMBER_TAG, "x")
    assert rollback(client, name, reason="bad") == 2
    client.set_registered_model_alias(name, "champion", "3")
    assert promote(client, name, 4, reason="better") == 3
    assert rollback(client, name, reason="bad") == 2
    assert rollback(client, name, reason="bad") == 1


CALLS = ("set_model_version_tag", "set_registered_model_alias", "update_model_version")


class Killed(BaseException):
    """In the place of SIGKILL between two calls of the registry."""


WRITES = pytest.mark.parametrize("writes", [0, 1, 2, 4])
"""How many come before the kill; a change makes more."""


def killed_after(writes: int, client: MlflowClient, change: Callable[[], object]) -> None:
    """Begin a change of the registry that is killed after so many of its writes."""
    left = writes

    def killed(write: Callable[..., object], *arguments: object, **options: object) -> object:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        return write(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        for call in CALLS:
            patch.setattr(client, call, partial(killed, getattr(client, call)))
        with pytest.raises(Killed):
            change()


def decisions(client: MlflowClient, name: str) -> list[str]:
    """What the versions 1 to 3 say of themselves."""
    return [version_tags(client, name, version)["hapvr.gate.decision"] for version in (1, 2, 3)]


@pytest.mark.slow
@WRITES
def test_a_killed_promotion_that_is_repeated_ends_as_if_it_had_not_been_killed(
    tracker: Tracker, name: str, writes: int
) -> None:
    client = tracker.client
    name = f"{name}-{writes}"
    for version in (add_version(tracker, name), add_version(tracker, name)):
        promote(client, name, version, how="gate", reason="better")
    third = add_version(tracker, name)

    def promote_third() -> None:
        promote(client, name, third, reason="by hand")

    killed_after(writes, client, promote_third)
    promote_third()
    assert champion_of(client, name).version == 3
    replaced = "was champion; version 3 replaced it by hand"
    assert decisions(client, name)[1:] == [replaced, "champion by hand"]
    assert rollback(client, name, reason="bad") == 2


@pytest.mark.slow
@WRITES
def test_a_killed_rollback_that_is_repeated_ends_as_if_it_had_not_been_killed(
    tracker: Tracker, name: str, writes: int
) -> None:
    """Nobody repeats it where the champion is the one before already."""
    client = tracker.client
    name = f"{name}-{writes}"
    for version in [add_version(tracker, name) for _ in range(3)]:
        promote(client, name, version, how="gate", reason="better")

    killed_after(writes, client, lambda: rollback(client, name, reason="bad"))
    if champion_of(client, name).version == 3:
        rollback(client, name, reason="bad")
    assert champion_of(client, name).version == 2
    replaced = "was champion; version 2 replaced it by rollback"
    assert decisions(client, name)[1:] == ["champion by rollback", replaced]
    assert rollback(client, name, reason="bad") == 1


def test_deleted_champion_is_no_champion_and_rollback_passes_over_it(
    tracker: Tracker, name: str
) -> None:
    """Version 2 is deleted while champion: there is no champion until a rollback goes to 1."""
    for version in (add_version(tracker, name), add_version(tracker, name)):
        promote(tracker.client, name, version, how="gate", reason="better")
    tracker.client.delete_model_version(name, "2")
    assert champion_of(tracker.client, name) is None
    assert rollback(tracker.client, name, reason="2 is gone") == 1
    champion = champion_of(tracker.client, name)
    assert champion.version == 1
