"""Versions in a database of MLflow, read without MLflow: importing it takes longer than a whole
search."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass

from hapvr.registry.moved_database import SQLITE, database_of, follow_move

KNOWN_SCHEMA = "dc11669786a5"
"""The revision of MLflow's tables for which the queries below were written. A database of another
revision is left to MLflow, which says what is wrong with it."""

_LATEST = "latest"
"""An alias that MLflow computes."""

_VERSIONS = """
SELECT name, version, COALESCE(NULLIF(storage_location, ''), source), creation_time
FROM model_versions
WHERE current_stage != 'Deleted_Internal' AND workspace = 'default' AND name = :name
"""

_BY_NUMBER = f"{_VERSIONS} AND version = :version"
_BY_ALIAS = f"""{_VERSIONS} AND version = (
    SELECT version FROM registered_model_aliases
    WHERE workspace = 'default' AND name = :name AND alias = :alias
)"""


@dataclass(frozen=True, kw_only=True)
class RegisteredVersion:
    """A version of a registered model."""

    name: str
    version: str
    place: str
    """the address of its files"""
    created_ms: int
    """when it was registered, since 1970"""


def stored_version(
    tracking_uri: str, name: str, *, alias: str | None = None, version: str | None = None
) -> RegisteredVersion | None:
    """A version of a model in a database file, by its number or by an alias; None where only MLflow
    can tell which one it is, or whether there is one.

    Raises:
        RegistryError: as `follow_move` does.
    """
    if not tracking_uri.startswith(SQLITE) or (alias or "").lower() == _LATEST:
        return None
    follow_move(tracking_uri)

    place = f"{database_of(tracking_uri).resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(place, uri=True)) as connection:
            schemas = connection.execute("SELECT version_num FROM alembic_version").fetchall()
            if schemas != [(KNOWN_SCHEMA,)]:
                return None
            if alias is None:
                rows = connection.execute(_BY_NUMBER, {"name": name, "version": version})
            else:
                rows = connection.execute(_BY_ALIAS, {"name": name, "alias": alias})

            row = rows.fetchone()
    except sqlite3.Error:
        return None

    if row is None:
        return None
    return RegisteredVersion(name=row[0], version=str(row[1]), place=row[2], created_ms=row[3])
