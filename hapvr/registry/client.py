"""The door to MLflow: where a registry is, its pages, and what stands behind a name such as
`models:/hapvr@champion`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import warnings
from contextlib import closing
from http.client import HTTPException
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from hapvr.errors import (
    FULL_HINT,
    ArgumentError,
    DataError,
    MissingPartError,
    RegistryError,
    is_installed,
    without_logins,
)
from hapvr.files import cache_folder, open_regular, require_regular
from hapvr.settings import first_line

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

CONNECT_S = 5.0
"""Seconds in which a server must answer. MLflow's own client would retry for minutes."""

SQLITE = "sqlite:///"

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

_STORE = re.compile(r"https?://.|sqlite:///.|(postgresql|mysql|mssql)(\+[a-z0-9]+)?://.")
_MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>[0-9]+))")


def is_server(tracking_uri: str) -> bool:
    """Whether the address is that of an MLflow server."""
    return tracking_uri.startswith(("http://", "https://"))


def without_login(uri: str) -> str:
    """An address without the name and password in it, to be shown."""
    return re.sub("(?s)(?<=//).*@|[?#].*", "", uri)


def require_store(tracking_uri: str) -> None:
    """Raise RegistryError unless a store is there: a server that answers within CONNECT_S, or a
    database file. MLflow would make an empty database, and the folders above it, for an address
    that is mistyped. Raises ArgumentError for what is not an address of a store, and for a login in
    that of a server, as MLflow's messages show it."""
    there, problem, shown = True, "it is something else, or damaged", without_login(tracking_uri)
    if _STORE.match(tracking_uri) is None or (is_server(tracking_uri) and shown != tracking_uri):
        wanted = (
            "http(s)://SERVER alone, its login in MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or sqlite:///FILE"
        )
        raise ArgumentError(
            f"tracking: {shown!r} is no registry's address, or had more (login, ?, #); "
            f"wanted {wanted}"
        )
    try:
        if is_server(tracking_uri):
            with urllib.request.urlopen(f"{shown.rstrip('/')}/health", timeout=CONNECT_S) as answer:
                there = answer.read(64).strip() == b"OK"
        elif tracking_uri.startswith(SQLITE):
            with open_regular(database_of(tracking_uri)) as file:
                there = file.read(16) == b"SQLite format 3\0"
    except (OSError, ValueError, HTTPException) as error:
        # one that wants a login, or is ill, is there; what it says to real requests is for the
        # client
        there, problem = isinstance(error, urllib.error.HTTPError) and error.code != 404, str(error)
    if not there:
        raise RegistryError(
            f"tracking: no MLflow registry answers at {shown} ({problem}); `make demo` "
            "registers a model and `make ui` "
            "serves a registry, tracking.uri in the configuration and --tracking-uri say "
            "where another registry is"
        )


def mlflow_client(tracking_uri: str, *, writing: bool = False) -> MlflowClient:
    """MLflow's client of an address. writing: whether something will be changed. Raises as
    `require_store` does, DataError for a database that cannot be written, and MissingPartError
    without MLflow."""
    require_store(tracking_uri)
    if not (is_installed("mlflow") and (is_server(tracking_uri) or is_installed("sqlalchemy"))):
        raise MissingPartError(
            f"model: the registry at {without_login(tracking_uri)} is asked by MLflow's "
            "client, which is not installed; give --model the "
            f"folder of a bundle, install `mlflow-skinny` for a server (`pip install "
            f"'.[registry]'`), or {FULL_HINT}"
        )
    if writing and tracking_uri.startswith(SQLITE):
        path = database_of(tracking_uri)
        if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
            raise DataError(
                f"tracking: {path} cannot be written; correct its permissions and those of "
                "its folder"
            )
    return open_client(tracking_uri)


def open_client(tracking_uri: str) -> MlflowClient:
    """MLflow's client of a store that is there, or of a database that it makes. Raises
    RegistryError for one that it cannot use."""
    follow_move(tracking_uri)
    from mlflow.tracking import MlflowClient

    try:
        return MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
    except Exception as error:  # of MLflow, of SQLAlchemy or of the driver of its database
        said = without_logins(first_line(error))
        raise RegistryError(
            f"tracking: MLflow cannot use {without_login(tracking_uri)} ({said})"
        ) from error


def registered_version(uri: str, tracking_uri: str) -> ModelVersion:
    """What `models:/NAME@ALIAS` or `models:/NAME/VERSION` stands for. Raises ArgumentError for
    another kind of name, DataError if there is no such version, and RegistryError where the
    registry does not say."""
    wanted = _MODEL_URI.fullmatch(uri)
    if wanted is None:
        raise ArgumentError(
            f"model: {uri!r} names no version; wanted models:/NAME@ALIAS or models:/NAME/VERSION"
        )
    client, shown = mlflow_client(tracking_uri), without_login(tracking_uri)
    from mlflow.exceptions import MlflowException

    try:
        if wanted["version"]:
            return client.get_model_version(wanted["name"], wanted["version"])
        return client.get_model_version_by_alias(wanted["name"], wanted["alias"])
    except MlflowException as error:
        if is_absent(error):
            raise DataError(
                f"model: {uri} is not in the registry at {shown}; `hapvr models list` shows "
                "what it has and why there "
                "is no champion, `hapvr models promote VERSION` makes one, to which `hapvr "
                "index add` takes the index, and "
                "--tracking-uri says where another registry is"
            ) from error
        problem = (
            f"the registry at {shown} does not say where {uri} is "
            f"({error.error_code}); try again later"
        )
        raise RegistryError(f"model: {problem}") from error


def pinned_uri(uri: str, tracking_uri: str) -> str:
    """`models:/NAME/VERSION` of what is registered as such or e.g. as `models:/hapvr@champion`;
    raises as above."""
    found = registered_version(uri, tracking_uri)
    return f"models:/{found.name}/{found.version}"


def registered_bundle(uri: str, tracking_uri: str) -> Path:
    """The local bundle of a registered model; raises as `located_bundle` does."""
    return located_bundle(uri, tracking_uri)[1]


def located_bundle(uri: str, tracking_uri: str) -> tuple[str, Path]:
    """`models:/NAME/VERSION` of a registered model such as `models:/hapvr@champion`, and its local
    bundle. Raises as `registered_version` does, and DataError where the version holds no bundle."""
    from hapvr.scorer.bundle import (
        SCORER_FILE,
    )  # with the decoder, which looking at versions does without

    found = registered_version(uri, tracking_uri)
    place = mlflow_client(tracking_uri).get_model_version_download_uri(found.name, found.version)
    address = urllib.parse.urlsplit(place)
    if address.scheme == "file":
        folder = Path(urllib.request.url2pathname(address.path))
    else:
        folder = _fetched(
            place, f"{found.name} {found.version} {found.creation_timestamp}", tracking_uri
        )
    mark = next(iter(sorted(folder.rglob(SCORER_FILE))), None)
    if mark is None:
        raise DataError(
            f"model: {uri} holds no model bundle; it was not registered by this project"
        )
    return f"models:/{found.name}/{found.version}", mark.parent


def is_absent(error: Any) -> bool:
    """Whether an MlflowException says that a model, an alias or a version is not there."""
    return error.error_code in (
        "RESOURCE_DOES_NOT_EXIST",
        "INVALID_PARAMETER_VALUE",
    )  # the second is for an alias


def database_of(tracking_uri: str) -> Path:
    """The file of an address that begins with SQLITE."""
    return Path(tracking_uri.removeprefix(SQLITE))


def follow_move(tracking_uri: str) -> None:
    """Have a database that was copied or moved with its artifacts name those beside it. MLflow
    records where they were made, and has no call that changes it (mlflow#3144): a copy would read
    and change the original's. Raises RegistryError for one that cannot be written."""
    database = database_of(tracking_uri)
    if not tracking_uri.startswith(SQLITE):
        return
    try:
        require_regular(database)
    except OSError as error:
        raise RegistryError(
            f"tracking: {database} cannot be used: {error.strerror}; restore it and its artifacts "
            "from one back-up"
        ) from error
    own = database.resolve().parent / "artifacts"
    if not (database.is_file() and database.stat().st_size):  # which MLflow would make, empty
        if any(own.glob("models/m-*/artifacts")):
            raise RegistryError(
                f"tracking: {database} is lost, but not {own}; restore both from one back-up"
            )
        return
    try:
        with closing(sqlite3.connect(database)) as connection, connection:
            rows = connection.execute(_FOLDERS)
            # other projects, whose artifacts stay where they are, may share the database
            named = {
                place
                for place, name in rows
                if place not in (None, own.as_uri()) and (own / name).is_dir()
            }
            for old, (table, column) in product(named, _PLACES.items()):
                change = (
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE "
                    f"instr({column} || '/', ?) = 1"
                )
                connection.execute(change, (own.as_uri(), len(old) + 1, f"{old}/"))
    except sqlite3.Error as error:
        if "no such" not in str(error):  # MLflow makes it
            hint = "try again, or restore it and its artifacts from one back-up"
            raise RegistryError(
                f"tracking: {database} cannot be read and written ({error}); {hint}"
            ) from error


def _fetched(place: str, version: str, tracking_uri: str) -> Path:
    """The files of a version in the user's cache. Of several processes one downloads them, and the
    others wait for it."""
    from mlflow.artifacts import download_artifacts

    try:
        cache = cache_folder("models")
    except OSError as error:
        warnings.warn(f"models are fetched again for each process: {error}")
        cache = Path(tempfile.mkdtemp(prefix="hapvr-models-"))
    folder = cache / hashlib.sha256(f"{tracking_uri} {version} {place}".encode()).hexdigest()[:32]
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            part = folder.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            try:
                download_artifacts(
                    artifact_uri=place, tracking_uri=tracking_uri, dst_path=str(part)
                )
            except (
                Exception
            ) as error:  # of the client of whatever store it names, and with its login
                where = f"{without_login(place)} ({type(error).__name__})"
                raise DataError(
                    f"model: {version} cannot be fetched from {where}; try again"
                ) from error
            part.rename(folder)
    return folder
