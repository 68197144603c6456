"""The registered model in a real registry: versions, champions, and what a name stands for."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from secrets import token_hex

import pytest
from mlflow.tracking import MlflowClient

from assets.project import ProjectResource
from hapvr.errors import ArgumentError, DataError, MissingPartError, RegistryError
from hapvr.files import file_sha256
from hapvr.registry.champions import NUMBER_TAG, SINCE_TAG, champion_of, promote, rollback
from hapvr.registry.client import database_of, mlflow_client, pinned_uri, registered_bundle
from hapvr.registry.runs import Tracker
from hapvr.registry.versions import CHALLENGER, register, version_tags
from hapvr.steps.project import Project
from tests.conftest import small_settings, write_settings
from tests.registry.conftest import register_champion
from tests.scorer.bundles import make_bundle


def add_version(tracker: Tracker, name: str, *, source: str = "") -> int:
    """A version of a run of its own."""
    run = tracker.start(token_hex(8), name="run", params={}, tags={})
    return register(
        tracker, name, run_id=run, model_uri=source or f"runs:/{run}/model", target=0.5, tags={}
    )


def test_registering_a_run_twice_keeps_its_version(tracker: Tracker, name: str) -> None:
    """A repeated registration finds the version it made, and the challenger alias points at the
    newest."""
    assert champion_of(tracker.client, name) is None
    first = add_version(tracker, name)
    run = tracker.client.get_model_version(name, str(first)).run_id
    again = register(tracker, name, run_id=run, model_uri=f"runs:/{run}/model", target=0.6, tags={})
    second = add_version(tracker, name)
    assert first == 1
    assert again == 1
    assert second == 2
    assert int(tracker.client.get_model_version_by_alias(name, CHALLENGER).version) == 2
    assert version_tags(tracker.client, name, 1)["hapvr.target_mean"] == "0.600000"
    assert champion_of(tracker.client, name) is None


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


def test_a_name_stands_for_the_bundle_that_has_it_now(
    tracker: Tracker, name: str, tmp_path: Path
) -> None:
    """It follows each change, by whomever."""
    bundles = [make_bundle(tmp_path / folder) for folder in "ab"]
    for bundle in bundles:
        add_version(tracker, name, source=bundle.as_uri())
    champion = f"models:/{name}@champion"
    promote(tracker.client, name, 1, reason="first")
    assert registered_bundle(champion, tracker.uri) == bundles[0]
    promote(tracker.client, name, 2, reason="second")
    assert registered_bundle(champion, tracker.uri) == bundles[1]
    assert pinned_uri(champion, tracker.uri) == f"models:/{name}/2"
    tracker.client.delete_model_version(name, "2")
    with pytest.raises(DataError, match=f"{champion} is not in the registry"):
        registered_bundle(champion, tracker.uri)


def test_without_mlflow_one_is_told_what_to_install(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hapvr.registry.client.is_installed", lambda package: False)
    with pytest.raises(MissingPartError, match="mlflow-skinny"):
        mlflow_client(tracker.uri)


def test_an_older_store_is_named(store: str, tmp_path: Path) -> None:
    shutil.copytree(database_of(store).parent, tmp_path / "older")
    with closing(sqlite3.connect(tmp_path / "older" / "mlflow.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'older'")
    with pytest.raises(
        RegistryError, match=r"MLflow cannot use .*older/mlflow\.db \(.*database schema"
    ):
        registered_bundle("models:/hapvr@champion", f"sqlite:///{tmp_path}/older/mlflow.db")


@pytest.mark.slow
def test_a_store_that_is_lost_while_its_files_are_there_is_not_begun_anew(
    tracker: Tracker, tmp_path: Path
) -> None:
    register_champion(tracker, make_bundle(tmp_path / "made"))
    shutil.copytree(database_of(tracker.uri).parent, tmp_path / "copy")
    (tmp_path / "copy" / "mlflow.db").write_bytes(b"")
    with pytest.raises(DataError, match=r"is lost, but not .*artifacts; restore both"):
        Tracker(f"sqlite:///{tmp_path}/copy/mlflow.db", "tests")


@pytest.mark.slow
def test_a_copied_store_has_files_of_its_own(tracker: Tracker, tmp_path: Path) -> None:
    """Other projects in the same database keep theirs where they are."""
    register_champion(tracker, make_bundle(tmp_path / "made"))
    folder = database_of(tracker.uri).parent
    theirs = tracker.client.create_experiment(
        "theirs", (tmp_path / "theirs" / "artifacts").as_uri()
    )
    run = tracker.client.create_run(theirs)
    shutil.copytree(folder, tmp_path / "copy")
    for place in (tmp_path / "copy", folder):
        uri = f"sqlite:///{place}/mlflow.db"
        assert registered_bundle("models:/hapvr@champion", uri).is_relative_to(place)
        ours = Tracker(uri, "tests")
        assert all(one.info.artifact_uri.startswith(place.as_uri()) for one in ours.runs())
        assert ours.client.get_run(run.info.run_id).info.artifact_uri == run.info.artifact_uri


@pytest.mark.slow
def test_a_server_gives_the_bundle_once(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files of the bundle come into the cache; a name that is not there is refused."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bundle = make_bundle(tmp_path)
    version = register_champion(Tracker(server, "hapvr"), bundle)
    downloaded_bundle = registered_bundle("models:/hapvr@champion", server)
    assert downloaded_bundle.is_relative_to(tmp_path / "cache")
    for file in bundle.rglob("*"):
        if file.is_file():
            assert file_sha256(downloaded_bundle / file.relative_to(bundle)) == file_sha256(file)

    assert pinned_uri("models:/hapvr@champion", server) == f"models:/hapvr/{version}"
    (tmp_path / "cache" / "hapvr" / "models").chmod(0o777)
    with pytest.warns(UserWarning, match="others may write to .*models; `chmod 700` it"):
        downloaded_bundle = registered_bundle("models:/hapvr@champion", server)
    assert not downloaded_bundle.is_relative_to(tmp_path / "cache")
    with pytest.raises(DataError, match="models:/hapvr@absent is not in the registry"):
        pinned_uri("models:/hapvr@absent", server)


LOGINS = ["", "hunter2@", "u:hunter2@", "u:hun/ter2@", "u:hunter2\n@"]


@pytest.mark.parametrize("login", LOGINS)
@pytest.mark.parametrize(
    "ask", [mlflow_client, lambda address: Tracker(address, "hapvr")], ids=["client", "tracker"]
)
def test_an_address_with_a_login_is_refused_without_showing_it(
    login: str, ask: Callable[[str], object]
) -> None:
    """MLflow would show it."""
    with pytest.raises(
        ArgumentError, match=r"'http://127\.0\.0\.1:9' is not .* MLFLOW_TRACKING_USERNAME"
    ) as caught:
        ask(f"http://{login}127.0.0.1:9?token=hunter2")

    assert "ter2" not in str(caught.value)


@pytest.mark.parametrize("login", LOGINS)
def test_a_link_to_a_page_has_no_login(login: str, tmp_path: Path) -> None:
    config = write_settings(tmp_path / "config.yaml", small_settings(tmp_path, tmp_path))
    project = Project.open(config, overrides={"tracking.uri": f"http://{login}127.0.0.1:9"})
    link = ProjectResource(config_path="", folder="", overrides={}).version_link(
        project, "hapvr", 1
    )
    assert str(link.value).startswith("http://127.0.0.1:9/#/models/hapvr/versions/1")
