"""The registered model in a real registry: versions, stores, and what a name stands for."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from assets.project import ProjectResource
from hapvr.errors import ArgumentError, DataError, MissingPartError, RegistryError
from hapvr.files import file_sha256
from hapvr.registry.champions import champion_of, promote
from hapvr.registry.client import database_of, mlflow_client, pinned_uri, registered_bundle
from hapvr.registry.runs import Tracker
from hapvr.registry.versions import CHALLENGER, register, version_tags
from hapvr.steps.project import Project
from tests.conftest import small_settings, write_settings
from tests.registry.conftest import add_version, register_champion
from tests.scorer.bundles import make_bundle


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


@pytest.mark.slow
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
    """Files of other projects in the same database stay where they are."""
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
        assert all(row.info.artifact_uri.startswith(place.as_uri()) for row in ours.runs())
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
