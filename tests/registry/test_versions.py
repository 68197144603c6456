"""The registered model in a real registry: versions, champions, and what a name stands for."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from assets.project import ProjectResource
from hapvr.errors import ArgumentError, DataError, MissingPartError, RegistryError
from hapvr.files import file_sha256
from hapvr.registry.client import database_of, mlflow_client, pinned_uri, registered_bundle
from hapvr.registry.runs import Tracker
from hapvr.registry.versions import (
    CHALLENGER,
    champion_of,
    promote,
    register,
    rollback,
    version_tags,
)
from hapvr.steps.project import Project
from tests.conftest import small_settings, write_settings
from tests.registry.conftest import register_champion
from tests.scorer.bundles import make_bundle


def add_version(tracker: Tracker, name: str, *, source: str = "") -> int:
    """A version of a run of its own."""
    number = len(tracker.client.search_runs([tracker.experiment_id]))
    run = tracker.start(f"run-{number}", name=f"run {number}", params={}, tags={})
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
    assert (first, again, second) == (1, 1, 2)
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
    other = MlflowClient(tracking_uri=tracker.uri, registry_uri=tracker.uri)
    decisions = [version_tags(other, name, version)["hapvr.gate.decision"] for version in (1, 2, 3)]
    replaced = "was champion; version 1 replaced it by rollback"
    assert decisions == ["champion by rollback", replaced, replaced]
    assert version_tags(other, name, 3)["hapvr.gate.reason"] == "looked at by hand"


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
    tracker: Tracker, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows each change, by whomever; without MLflow one is told what to install."""
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
    monkeypatch.setattr("hapvr.registry.client.is_installed", lambda package: False)
    with pytest.raises(MissingPartError, match="mlflow-skinny"):
        mlflow_client(tracker.uri)


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
    shutil.copytree(folder, tmp_path / "older")
    with closing(sqlite3.connect(tmp_path / "older" / "mlflow.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'older'")
    with pytest.raises(
        RegistryError, match=r"MLflow cannot use .*older/mlflow\.db \(.*database schema"
    ):
        registered_bundle("models:/hapvr@champion", f"sqlite:///{tmp_path}/older/mlflow.db")
    (tmp_path / "copy" / "mlflow.db").write_bytes(b"")
    with pytest.raises(DataError, match=r"is lost, but not .*artifacts; restore both"):
        Tracker(f"sqlite:///{tmp_path}/copy/mlflow.db", "tests")


def test_a_server_gives_the_bundle_once(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files of the bundle come into the cache; a name that is not there is refused."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bundle = make_bundle(tmp_path)
    version = register_champion(Tracker(server, "hapvr"), bundle)
    found = registered_bundle("models:/hapvr@champion", server)
    assert found.is_relative_to(tmp_path / "cache")
    for file in bundle.rglob("*"):
        if file.is_file():
            assert file_sha256(found / file.relative_to(bundle)) == file_sha256(file)
    assert pinned_uri("models:/hapvr@champion", server) == f"models:/hapvr/{version}"
    (tmp_path / "cache" / "hapvr" / "models").chmod(0o777)
    with pytest.warns(UserWarning, match="others may write to .*models; `chmod 700` it"):
        found = registered_bundle("models:/hapvr@champion", server)
    assert not found.is_relative_to(tmp_path / "cache")
    with pytest.raises(DataError, match="models:/hapvr@absent is not in the registry"):
        pinned_uri("models:/hapvr@absent", server)


@pytest.mark.parametrize("login", ["", "hunter2@", "u:hunter2@", "u:hun/ter2@", "u:hunter2\n@"])
def test_no_login_of_an_address_is_shown(login: str, tmp_path: Path) -> None:
    """It is refused, as MLflow would show it. Links to pages have none."""
    for ask in (mlflow_client, lambda address: Tracker(address, "hapvr")):
        with pytest.raises(
            ArgumentError, match=r"'http://127\.0\.0\.1:9' is no .* MLFLOW_TRACKING_USERNAME"
        ) as caught:
            ask(f"http://{login}127.0.0.1:9?token=hunter2")
        assert "ter2" not in str(caught.value)
    config = write_settings(tmp_path / "config.yaml", small_settings(tmp_path, tmp_path))
    project = Project.open(config, overrides={"tracking.uri": f"http://{login}127.0.0.1:9"})
    link = ProjectResource(config_path="", folder="", overrides={}).version_link(
        project, "hapvr", 1
    )
    assert str(link.value).startswith("http://127.0.0.1:9/#/models/hapvr/versions/1")
