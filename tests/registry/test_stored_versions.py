"""Versions that are read from MLflow's database without MLflow."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hapvr.registry.client import database_of, open_client
from hapvr.registry.stored_versions import KNOWN_SCHEMA, stored_version
from tests.conftest import run_python
from tests.registry.conftest import Registered


@pytest.fixture
def own_database(registered: Registered, tmp_path: Path) -> str:
    """The URI of a copy of the registry's database, which a test may change."""
    file = shutil.copy(database_of(registered.uri), tmp_path)
    return f"sqlite:///{file}"


def test_the_known_schema_is_that_of_the_installed_mlflow(registered: Registered) -> None:
    """Otherwise every search would import MLflow again: look at the queries, then name the new
    revision."""
    with closing(sqlite3.connect(database_of(registered.uri))) as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchall() == [
            (KNOWN_SCHEMA,)
        ]


@pytest.mark.parametrize(
    "asked", [{"alias": "champion"}, {"version": "1"}, {"version": "0001"}], ids=str
)
def test_a_version_is_what_mlflow_says(registered: Registered, asked: dict[str, str]) -> None:
    client = open_client(registered.uri)
    version = client.get_model_version("hapvr", "1")
    stored = stored_version(registered.uri, "hapvr", **asked)
    assert stored is not None
    assert stored.name == "hapvr"
    assert stored.version == "1"
    assert stored.place == client.get_model_version_download_uri("hapvr", "1")
    assert stored.created_ms == version.creation_timestamp


@pytest.mark.parametrize(
    "asked",
    [{"alias": "absent"}, {"version": "2"}, {"alias": "latest"}],
    ids=["no alias", "no version", "computed alias"],
)
def test_what_is_not_stored_is_left_to_mlflow(
    registered: Registered, asked: dict[str, str]
) -> None:
    assert stored_version(registered.uri, "hapvr", **asked) is None


def test_a_deleted_version_is_left_to_mlflow(own_database: str) -> None:
    open_client(own_database).delete_model_version("hapvr", "1")
    assert stored_version(own_database, "hapvr", version="1") is None


def test_a_database_of_another_schema_is_left_to_mlflow(own_database: str) -> None:
    with closing(sqlite3.connect(database_of(own_database))) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'newer'")
    assert stored_version(own_database, "hapvr", version="1") is None


def test_a_champion_is_found_without_mlflow(registered: Registered) -> None:
    code = (
        "import sys; from hapvr.registry.client import registered_bundle\n"
        f"print(registered_bundle('models:/hapvr@champion', {registered.uri!r}))\n"
        "print('mlflow' in sys.modules)"
    )
    folder, has_mlflow = run_python("-c", code).splitlines()
    assert Path(folder).is_dir()
    assert has_mlflow == "False"
