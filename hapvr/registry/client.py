"""The door to MLflow: where a registry is, and what a name such as `models:/hapvr@champion` stands
for."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import warnings
from http.client import HTTPException
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
from hapvr.files import cache_folder, file_problem, open_regular
from hapvr.registry.moved_database import SQLITE, database_of, follow_move
from hapvr.registry.records import is_place
from hapvr.registry.stored_versions import RegisteredVersion, stored_version
from hapvr.settings import first_line

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

CONNECT_S = 5.0
"""Seconds in which a server must answer. MLflow's own client would retry for minutes."""

SQLITE_MAGIC = b"SQLite format 3\0"
"""The first bytes of a database file."""

_STORE = re.compile(r"https?://.|sqlite:///.|(postgresql|mysql|mssql)(\+[a-z0-9]+)?://.")
_MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>[0-9]+))")


def is_server(tracking_uri: str) -> bool:
    """Whether the address is that of an MLflow server."""
    return tracking_uri.startswith(("http://", "https://"))


def without_login(uri: str) -> str:
    """An address without its login, so that it can be shown."""
    return re.sub("(?s)(?<=//).*@|[?#].*", "", uri)


def require_store(tracking_uri: str) -> None:
    """Require that a store exists: a server that answers within CONNECT_S, or a database file. For
    a mistyped address MLflow would make an empty database, and the folders above it.

    Raises:
        RegistryError: there is no store.
        ArgumentError: the address is not that of a store, or is that of a server with a login,
            which MLflow's messages would show."""
    shown = without_login(tracking_uri)
    has_login = is_server(tracking_uri) and shown != tracking_uri
    if _STORE.match(tracking_uri) is None or has_login:
        wanted = (
            "http(s)://SERVER alone, with its login in MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or sqlite:///FILE"
        )
        raise ArgumentError(
            f"tracking: {shown!r} is not the address of a registry, or had more (login, ?, #); "
            f"expected {wanted}"
        )

    problem = _problem_of_store(tracking_uri)
    if problem:
        raise RegistryError(
            f"tracking: no MLflow registry answers at {shown} ({problem}); a collection has one "
            "once a model was trained on it, `make ui` serves one, and tracking.uri in the "
            "configuration or --tracking-uri names another"
        )


def _problem_of_store(tracking_uri: str) -> str:
    """Why there is no store at an address; "" where there is one, or for other databases, which are
    not looked at."""
    is_store = True
    try:
        if is_server(tracking_uri):
            place = f"{tracking_uri.rstrip('/')}/health"
            with urllib.request.urlopen(place, timeout=CONNECT_S) as answer:
                is_store = answer.read(64).strip() == b"OK"
        elif tracking_uri.startswith(SQLITE):
            with open_regular(database_of(tracking_uri)) as file:
                is_store = file.read(16) == SQLITE_MAGIC
    except (OSError, ValueError, HTTPException) as error:
        # A server that wants a login, or is ill, exists. Its answers to real requests concern the
        # client.
        if isinstance(error, urllib.error.HTTPError) and error.code != 404:
            return ""
        return str(error)

    return "" if is_store else "it is something else, or damaged"


def mlflow_client(tracking_uri: str, *, writing: bool = False) -> MlflowClient:
    """MLflow's client for an address. writing: whether something will be changed. Raises as
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
    """MLflow's client for an existing store, or for a database that it makes. Raises RegistryError
    for a store that it cannot use."""
    follow_move(tracking_uri)
    from mlflow.tracking import MlflowClient

    try:
        return MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
    except Exception as error:  # of MLflow, of SQLAlchemy or of the driver of its database
        reason = without_logins(first_line(error))
        raise RegistryError(
            f"tracking: MLflow cannot use {without_login(tracking_uri)} ({reason})"
        ) from error


def registered_version(uri: str, tracking_uri: str) -> RegisteredVersion:
    """The version that `models:/NAME@ALIAS` or `models:/NAME/VERSION` names. Raises ArgumentError
    for another kind of name, DataError if there is no such version, and RegistryError where the
    registry does not tell."""
    wanted = _MODEL_URI.fullmatch(uri)
    if wanted is None:
        raise ArgumentError(
            f"model: {uri!r} names no version; expected models:/NAME@ALIAS or models:/NAME/VERSION"
        )

    if tracking_uri.startswith(SQLITE):
        require_store(tracking_uri)
        stored = stored_version(
            tracking_uri, wanted["name"], alias=wanted["alias"], version=wanted["version"]
        )
        if stored is not None:
            return _with_place(stored, tracking_uri)

    client = mlflow_client(tracking_uri)
    shown = without_login(tracking_uri)
    from mlflow.exceptions import MlflowException

    try:
        if wanted["version"]:
            version = client.get_model_version(wanted["name"], wanted["version"])
        else:
            version = client.get_model_version_by_alias(wanted["name"], wanted["alias"])

        place = client.get_model_version_download_uri(version.name, version.version)
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

    return _with_place(
        RegisteredVersion(
            name=version.name,
            version=str(version.version),
            place=place,
            created_ms=version.creation_timestamp,
        ),
        tracking_uri,
    )


def _with_place(version: RegisteredVersion, tracking_uri: str) -> RegisteredVersion:
    """The version itself if its record names a place. Raises RegistryError if not, since others may
    change rows."""
    if is_place(version.place):
        return version
    raise RegistryError(
        f"model: the record of {version.name} version {version.version} in the registry at "
        f"{without_login(tracking_uri)} names no place of its files ({version.place!r:.80}); "
        "restore the registry from a back-up, or promote another version"
    )


def pinned_uri(uri: str, tracking_uri: str) -> str:
    """`models:/NAME/VERSION` for that name itself or an alias such as `models:/hapvr@champion`.
    Raises as `registered_version` does."""
    version = registered_version(uri, tracking_uri)
    return f"models:/{version.name}/{version.version}"


def registered_bundle(uri: str, tracking_uri: str) -> Path:
    """The local bundle of a registered model; raises as `located_bundle` does."""
    return located_bundle(uri, tracking_uri)[1]


def located_bundle(uri: str, tracking_uri: str) -> tuple[str, Path]:
    """`models:/NAME/VERSION` for a registered model such as `models:/hapvr@champion`, and its local
    bundle. Raises as `registered_version` does, and DataError where the version holds no bundle."""
    # this imports the decoder, which is not needed to look at versions
    from hapvr.scorer.description import SCORER_FILE

    version = registered_version(uri, tracking_uri)
    address = urllib.parse.urlsplit(version.place)
    if address.scheme == "file":
        folder = Path(urllib.request.url2pathname(address.path))
    else:
        identity = f"{version.name} {version.version} {version.created_ms}"
        folder = _fetched(version.place, identity, tracking_uri)

    try:
        bundles = _folders_with(SCORER_FILE, folder)
    except OSError as error:
        raise DataError(
            f"model: the files of {uri} in {folder} cannot be read ({file_problem(error)}); "
            "restore them from the back-up of the registry, or promote another version"
        ) from error

    if not bundles:
        raise DataError(
            f"model: {uri} holds no model bundle; it was not registered by this project"
        )

    return f"models:/{version.name}/{version.version}", bundles[0]


def _folders_with(name: str, folder: Path) -> list[Path]:
    """The folders below a folder that have a file of this name, sorted. Raises OSError for a folder
    that cannot be listed, which Path.rglob would skip."""

    def refuse(error: OSError) -> None:
        raise error

    listed = os.walk(folder, onerror=refuse)
    return sorted(Path(place) for place, _, names in listed if name in names)


def is_absent(error: Any) -> bool:
    """Whether an MlflowException says that a model, an alias or a version does not exist."""
    # The second is for an alias.
    return error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")


def _fetched(place: str, version: str, tracking_uri: str) -> Path:
    """The files of a version in the user's cache. One process downloads them, and others wait for
    it.

    place: of the files.
    version: its name, number and time, which together are unique."""
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
            _download(place, part, version, tracking_uri)
            part.rename(folder)

    return folder


def _download(place: str, folder: Path, version: str, tracking_uri: str) -> None:
    """Download the files of a version into a folder. Raises DataError where that fails."""
    from mlflow.artifacts import download_artifacts

    try:
        download_artifacts(artifact_uri=place, tracking_uri=tracking_uri, dst_path=str(folder))
    # The client of a store may raise anything, even with a login in it.
    except Exception as error:
        where = f"{without_login(place)} ({type(error).__name__})"
        raise DataError(f"model: {version} cannot be fetched from {where}; try again") from error
