"""A registry whose rows and tags were changed by others, or that another process holds."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException

from hapvr.care.checks import check_registry
from hapvr.care.health import health
from hapvr.data.filesystem import DataRoot
from hapvr.errors import DamagedError, RegistryBusyError, RegistryError
from hapvr.registry.champions import NUMBER_TAG, champion_of, promote, rollback
from hapvr.registry.client import located_bundle, mlflow_client
from hapvr.registry.records import count_of, created_text, is_place, measure_of, moment_of
from hapvr.registry.runs import Tracker
from hapvr.registry.versions import TARGET_TAG, list_versions, register, registry_change
from hapvr.steps.project import REGISTRY
from tests.registry.empty_store import new_store
from tests.steps.data_projects import folder_settings, open_project

NAME = "hapvr"


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (count_of, "12", 12),
        (count_of, "9" * 6000, None),
        (count_of, "²", None),
        (count_of, "-1", None),
        (count_of, None, None),
        (measure_of, "0.5", 0.5),
        (measure_of, "nan", None),
        (measure_of, "1e999", None),
        (measure_of, "best", None),
        (measure_of, None, None),
        (created_text, 0, "1970-01-01T00:00:00+00:00"),
        (created_text, None, ""),
        (created_text, 9 * 10**17, ""),
        (created_text, "long ago", ""),
        (is_place, "file:///models/a", True),
        (is_place, "/models/a", True),
        (is_place, None, False),
        (is_place, b"\xff", False),
        (is_place, "file://[bad", False),
        (is_place, "file:///a%00b", False),
        (is_place, "file:///", False),
    ],
)
def test_what_cannot_be_read_counts_as_not_written(
    read: Callable[[Any], object], text: object, expected: object
) -> None:
    assert read(text) == expected


def test_a_time_that_is_none_counts_as_not_written() -> None:
    assert moment_of("yesterday") is None
    assert moment_of("2026-01-01T00:00:00") == moment_of("2026-01-01T01:00:00+01:00")


def versions_of(folder: Path) -> Tracker:
    """Three versions; the first and then the second were promoted."""
    tracker = Tracker(new_store(folder), NAME)
    for number in (1, 2, 3):
        run = tracker.start(f"run-{number}", name=f"run-{number}", params={}, tags={})
        place = (folder / "artifacts" / "models" / f"m-{number}").as_uri()
        register(tracker, NAME, run_id=run, model_uri=place, target=0.5, tags={})

    for number in (1, 2):
        promote(tracker.client, NAME, number, reason="")
    return tracker


def change(folder: Path, statement: str, *values: object) -> None:
    """Change a row behind MLflow's back."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as database, database:
        database.execute(statement, values)


TAG = "UPDATE model_version_tags SET value = ? WHERE version = 2 AND key = ?"


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        (TAG, ("9" * 6000, NUMBER_TAG)),
        (TAG, ("best", TARGET_TAG)),
        (TAG, ("nan", TARGET_TAG)),
        ("UPDATE model_versions SET creation_time = 9e17 WHERE version = 2", ()),
        ("DELETE FROM model_version_tags", ()),
        ("UPDATE registered_model_aliases SET version = 'x' WHERE alias = 'challenger'", ()),
    ],
    ids=["number", "target", "nan", "created", "no-tags", "alias"],
)
def test_a_registry_with_absurd_rows_lists_and_promotes(
    statement: str, values: tuple[object, ...], tmp_path: Path
) -> None:
    client = versions_of(tmp_path).client
    change(tmp_path, statement, *values)
    assert [row["version"] for row in list_versions(client, NAME)] == [3, 2, 1]
    assert promote(client, NAME, 3, reason="") == 2


@pytest.mark.parametrize("place", [None, "file://[bad", "file:///a%00b", b"\xff\x00"])
def test_a_version_without_a_place_is_refused_by_name(place: object, tmp_path: Path) -> None:
    tracker = versions_of(tmp_path / "mlflow")
    statement = "UPDATE model_versions SET storage_location = ?, source = ? WHERE version = 2"
    change(tmp_path / "mlflow", statement, place, place)
    with pytest.raises(RegistryError, match=r"version 2 .* names no place of its files"):
        located_bundle(f"models:/{NAME}/2", tracker.uri)
    with pytest.raises(DamagedError, match="names no place of a version's files"):
        check_registry(DataRoot(tmp_path), "")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DELETE FROM model_versions WHERE version = 2", "alias champion of .* names version 2"),
        ("UPDATE registered_model_aliases SET version = 'x'", "names version 'x', which is gone"),
        ("DROP TABLE registered_model_aliases", "no such table: registered_model_aliases"),
    ],
)
def test_aliases_that_were_lost_are_damage(statement: str, message: str, tmp_path: Path) -> None:
    versions_of(tmp_path / "mlflow")
    change(tmp_path / "mlflow", statement)
    with pytest.raises(DamagedError, match=message):
        check_registry(DataRoot(tmp_path), "")


def test_files_of_versions_that_were_deleted_are_not_missed(tmp_path: Path) -> None:
    """MLflow keeps the rows of such versions."""
    client = versions_of(tmp_path / "mlflow").client
    with pytest.raises(DamagedError, match="which a registered version names, is missing"):
        check_registry(DataRoot(tmp_path), "")
    for number in ("1", "2", "3"):
        client.delete_model_version(NAME, number)
    check_registry(DataRoot(tmp_path), "")


def test_a_change_for_which_the_disk_has_no_room_says_so(tmp_path: Path) -> None:
    """SQLite's own words; MLflow would have the caller try again later."""
    client = versions_of(tmp_path).client
    problem = MlflowException("(sqlite3.OperationalError) database or disk is full")
    with (
        pytest.raises(RegistryError, match="its disk is full; free space"),
        registry_change(client),
    ):
        raise problem


@pytest.mark.slow
def test_a_database_that_another_process_holds_is_neither_lost_nor_damaged(tmp_path: Path) -> None:
    """It is reported as busy, within seconds, and nobody is told that its champion is lost."""
    project = open_project(tmp_path, folder_settings(tmp_path / "in", tmp_path / "data"))
    database = project.root.local_path(REGISTRY)
    uri = versions_of(database.parent).uri
    with closing(sqlite3.connect(database, isolation_level=None)) as held:
        held.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RegistryBusyError, match="in use by another process"):
            mlflow_client(uri)
        state = health(project)

    assert "in use by another process" in state.registry_busy
    assert "champion_lost" not in {concern.event for concern in state.concerns}
    assert any("not known" in line for line in state.lines())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "version"),
    [
        pytest.param(partial(promote, version=3, reason=""), 3, id="promote"),
        pytest.param(partial(rollback, reason=""), 1, id="rollback"),
    ],
)
def test_a_database_that_is_held_during_a_change_is_reported_as_busy(
    change: Callable[..., object], version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is free, the repeated call goes on where the first one stopped."""
    client = versions_of(tmp_path).client
    with closing(sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)) as holder:
        describe = client.update_model_version

        def describe_and_hold(*arguments: Any, **values: Any) -> None:
            describe(*arguments, **values)
            holder.execute("BEGIN EXCLUSIVE")

        with monkeypatch.context() as patch:
            patch.setattr(client, "update_model_version", describe_and_hold)
            with pytest.raises(RegistryBusyError, match="repeat this call"):
                change(client, NAME)
        holder.execute("ROLLBACK")

    change(client, NAME)
    champion = champion_of(client, NAME)
    assert champion is not None
    assert champion.version == version
