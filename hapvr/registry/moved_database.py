"""Corrects the places in a database of MLflow that was moved with its artifacts, since MLflow has
no call for that."""

import sqlite3
from contextlib import closing
from pathlib import Path

from hapvr.errors import RegistryBusyError, RegistryError
from hapvr.files import require_regular

SQLITE = "sqlite:///"
"""The beginning of the address of a database file."""

_PLACES = {
    "experiments": "artifact_location",
    "runs": "artifact_uri",
    "logged_models": "artifact_location",
    "model_versions": "storage_location",
}
"""Columns of MLflow's database that say where artifacts are."""

_FOLDERS = """
SELECT experiments.artifact_location, run_uuid
FROM experiments JOIN runs USING (experiment_id)
UNION
SELECT experiments.artifact_location, 'models/' || model_id
FROM experiments JOIN logged_models USING (experiment_id)
"""
"""Where the artifacts of each experiment are, and folders of runs and models there."""


def database_of(tracking_uri: str) -> Path:
    """The file of an address that begins with SQLITE."""
    return Path(tracking_uri.removeprefix(SQLITE))


def follow_move(tracking_uri: str) -> None:
    """Make a database that was copied or moved with its artifacts name the artifacts beside it.
    MLflow records where they were made, and has no call that changes this (mlflow#3144): a copy
    would read and change the artifacts of the original.

    Raises:
        RegistryBusyError: another process has locked it for longer than SQLite waits, five
            seconds.
        RegistryError: it cannot be written, or is lost."""
    if not tracking_uri.startswith(SQLITE):
        return
    database = database_of(tracking_uri)
    try:
        require_regular(database)
    except OSError as error:
        raise RegistryError(
            f"tracking: {database} cannot be used: {error.strerror}; restore it and its artifacts "
            "from one back-up"
        ) from error

    artifacts = database.resolve().parent / "artifacts"
    if not database.is_file() or not database.stat().st_size:  # MLflow would make it, empty
        if any(artifacts.glob("models/m-*/artifacts")):
            raise RegistryError(
                f"tracking: {database} is lost, but not {artifacts}; restore both from one back-up"
            )
        return

    try:
        with closing(sqlite3.connect(database)) as connection, connection:
            for former in _former_places(connection, artifacts):
                _replace(connection, former, artifacts.as_uri())
    except sqlite3.Error as error:
        if "locked" in str(error):
            raise RegistryBusyError(
                f"tracking: {database} is in use by another process ({error}); wait for it to "
                "end, or end it, and try again"
            ) from error
        if "no such" not in str(error):  # MLflow makes tables that are lacking
            raise RegistryError(
                f"tracking: {database} cannot be read and written ({error}); try again, or "
                "restore it and its artifacts from one back-up"
            ) from error


def _former_places(connection: sqlite3.Connection, artifacts: Path) -> set[str]:
    """Addresses in the database from which artifacts were moved here. Other projects, whose
    artifacts stay where they are, may share the database."""
    former = set()
    for place, name in connection.execute(_FOLDERS):
        if place not in (None, artifacts.as_uri()) and (artifacts / name).is_dir():
            former.add(place)

    return former


def _replace(connection: sqlite3.Connection, former: str, place: str) -> None:
    """Replace an address by another in all columns, wherever a value begins with it."""
    for table, column in _PLACES.items():
        change = (
            f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE "
            f"instr({column} || '/', ?) = 1"
        )
        connection.execute(change, (place, len(former) + 1, f"{former}/"))
