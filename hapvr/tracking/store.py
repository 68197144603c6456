"""Where MLflow's store is, and the bundle of a registered version, without importing MLflow where that is possible.

Importing MLflow and opening its database takes 3 to 5 seconds of processor time, so `hapvr score` asks the database or
the server itself. Whatever it does not understand it leaves to MLflow's client.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from hapvr.errors import ArgumentError, DataError, MissingPartError, RegistryError
from hapvr.installed import FULL_REMEDY, is_installed

CONNECT_S = 5.0
"""Seconds in which a server must answer. MLflow's own client would retry for minutes."""

FILE_S = 60.0
"""Seconds in which a server must go on with a file."""

BUNDLE_MARK = "scorer.json"
SIZES_FILE = "fetched.json"
"""Sizes of the files of a cached version by name, so that what a power cut has damaged is fetched again."""

HEALTHY = b"OK"
SQLITE = "sqlite:///"
DELETED = "Deleted_Internal"
"""The stage that MLflow's tables give a version that was deleted; its row and files stay."""

_MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>[0-9]+))")


@dataclass(frozen=True)
class ModelName:
    """`models:/<name>@<alias>` or `models:/<name>/<version>`; alias or version is None."""

    name: str
    alias: str | None
    version: str | None


def parse_model_uri(uri: str) -> ModelName:
    """Raises ArgumentError for anything but models:/NAME@ALIAS and models:/NAME/VERSION."""
    found = _MODEL_URI.fullmatch(uri)
    if found is None:
        raise ArgumentError(
            f"model: {uri!r} is no name of a version; wanted models:/NAME@ALIAS or models:/NAME/VERSION"
        )
    return ModelName(found["name"], found["alias"], found["version"])


def is_server(tracking_uri: str) -> bool:
    """Whether the address is that of an MLflow server."""
    return tracking_uri.startswith(("http://", "https://"))


def require_store(tracking_uri: str) -> None:
    """Raise DataError unless a store is there: a server that answers within CONNECT_S, or a database file.

    MLflow would make an empty database, and the folders above it, for an address that is mistyped.
    """
    if is_server(tracking_uri):
        other = f"tracking: what answers at {tracking_uri} is no MLflow server; correct the address"
        try:
            with urllib.request.urlopen(f"{tracking_uri.rstrip('/')}/health", timeout=CONNECT_S) as answer:
                if answer.read(64).strip() != HEALTHY:
                    raise DataError(other)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise DataError(f"{other} ({error})") from error
            # it wants a login, or is ill; what it says to real requests is for the client
        except (OSError, ValueError) as error:
            raise DataError(
                f"tracking: no MLflow server answers at {tracking_uri} ({error}); start it (`make ui` serves one), or "
                "correct the address (tracking.uri in the configuration, --tracking-uri on the command line)"
            ) from error
    elif tracking_uri.startswith(SQLITE):
        path = Path(tracking_uri.removeprefix(SQLITE))
        problem = _database_problem(path)
        if problem:
            raise DataError(
                f"tracking: {path} {problem}; `make demo` registers a model, --tracking-uri says where another registry is"
            )
    elif not re.match(r"(postgresql|mysql|mssql)(\+[a-z0-9]+)?://.", tracking_uri):
        raise ArgumentError(
            f"--tracking-uri is {tracking_uri!r}; wanted the http(s) address of an MLflow server, or sqlite:///FILE"
        )


def require_writable(tracking_uri: str) -> None:
    """Raise DataError for a database file that may only be read; a server says so itself."""
    if tracking_uri.startswith(SQLITE):
        path = Path(tracking_uri.removeprefix(SQLITE))
        if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
            raise DataError(f"tracking: {path} cannot be written; correct its permissions and those of its folder")


def registered_bundle(uri: str, tracking_uri: str) -> Path:
    """The local bundle of a registered model such as `models:/hapvr@champion`.

    Raises ArgumentError for another kind of name, DataError if there is no such registry, version or bundle.
    """
    wanted = parse_model_uri(uri)
    require_store(tracking_uri)
    found: Path | None = None
    if is_server(tracking_uri):
        facts = _served_version(wanted, tracking_uri)
        if facts is not None:
            text = json.dumps(
                [tracking_uri, facts["name"], facts["version"], facts["creation_timestamp"], facts["source"]]
            )
            cached = _cache() / hashlib.sha256(text.encode()).hexdigest()[:32]
            return _cached_bundle(cached) or _fetch(uri, tracking_uri, cached)
    elif tracking_uri.startswith(SQLITE):
        found = _stored_bundle(wanted, uri, tracking_uri)
    return found or _download(uri, tracking_uri)


def pinned_uri(uri: str, tracking_uri: str) -> str:
    """`models:/NAME/VERSION` of a version that is registered as such or e.g. as `models:/hapvr@champion`.

    Raises as `registered_bundle` does, also where the version was deleted; RegistryError where the registry does not say.
    """
    wanted = parse_model_uri(uri)
    require_store(tracking_uri)
    version = None
    if is_server(tracking_uri):
        facts, problem = _answer_for(wanted, tracking_uri)
        if facts is None and problem:
            raise _refusal(problem, wanted, uri, tracking_uri)
        version = None if facts is None else facts["version"]
    elif tracking_uri.startswith(SQLITE):
        row = _stored_row(wanted, uri, tracking_uri)
        version = None if row is None else row[0]
    return f"models:/{wanted.name}/{version or _asked_version(wanted, uri, tracking_uri)}"


def _absent(uri: str, tracking_uri: str) -> DataError:
    return DataError(
        f"model: {uri} is not in the registry at {tracking_uri}; `hapvr models list` shows what it has, --tracking-uri says "
        "where another one is"
    )


def _refusal(code: str, wanted: ModelName, uri: str, tracking_uri: str) -> DataError:
    """The error for a code of MLflow: there is no such version, or the registry cannot tell."""
    no_alias = wanted.alias is not None and code == "INVALID_PARAMETER_VALUE"  # its code for an alias that is not there
    if no_alias or code == "RESOURCE_DOES_NOT_EXIST":
        return _absent(uri, tracking_uri)
    return RegistryError(f"model: the registry at {tracking_uri} does not say where {uri} is ({code}); try again later")


def _asked_version(wanted: ModelName, uri: str, tracking_uri: str) -> str:
    """The number of a version, by MLflow's client."""
    if not is_installed("mlflow"):
        raise _refusal("without MLflow its answer is not understood", wanted, uri, tracking_uri)
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    try:
        client = MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
        if wanted.version is not None:
            return str(client.get_model_version(wanted.name, wanted.version).version)
        return str(client.get_model_version_by_alias(wanted.name, str(wanted.alias)).version)
    except MlflowException as error:
        raise _refusal(error.error_code, wanted, uri, tracking_uri) from error


def _stored_row(wanted: ModelName, uri: str, tracking_uri: str) -> tuple[str, str] | None:
    """Number and place of the files of a version, from MLflow's tables; None leaves the question to MLflow.

    Raises DataError where the tables have no such version, or one that was deleted.
    """
    database = Path(tracking_uri.removeprefix(SQLITE))
    number, given = "?", wanted.version
    if wanted.version is None:
        number = "(SELECT version FROM registered_model_aliases WHERE name = v.name AND alias = ?)"
        given = wanted.alias
    query = (
        f"SELECT v.version, v.storage_location FROM model_versions v WHERE v.name = ? AND v.version = {number} "
        "AND v.current_stage <> ?"
    )
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            row = connection.execute(query, (wanted.name, given, DELETED)).fetchone()
    except sqlite3.Error:
        return None
    if row is None:
        raise _absent(uri, tracking_uri)
    return str(row[0]), str(row[1] or "")


def _database_problem(path: Path) -> str:
    """Why a file is no SQLite database; empty if it is one."""
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except (OSError, ValueError) as error:
        return f"cannot be opened ({error})"
    return "" if head == b"SQLite format 3\0" else "is no SQLite database"


def _stored_bundle(wanted: ModelName, uri: str, tracking_uri: str) -> Path | None:
    """The bundle of a version whose files lie on this machine, from MLflow's tables; None leaves the question to MLflow."""
    row = _stored_row(wanted, uri, tracking_uri)
    address = None if row is None else urllib.parse.urlsplit(row[1])
    if address is None or address.scheme != "file":
        return None
    return _bundle_below(Path(urllib.request.url2pathname(address.path)))


def _served_version(wanted: ModelName, server: str) -> dict[str, Any] | None:
    """What the server's REST interface says of a version; None leaves the question to MLflow."""
    return _answer_for(wanted, server)[0]


def _answer_for(wanted: ModelName, server: str) -> tuple[dict[str, Any] | None, str]:
    """What the server's REST interface says of a version, or None and the code of its error; "" leaves it to MLflow, which
    knows how to log in."""
    if wanted.version is None:
        place, query = "registered-models/alias", {"name": wanted.name, "alias": str(wanted.alias)}
    else:
        place, query = "model-versions/get", {"name": wanted.name, "version": wanted.version}
    try:
        facts = _asked(f"{server.rstrip('/')}/api/2.0/mlflow/{place}?{urllib.parse.urlencode(query)}")["model_version"]
    except urllib.error.HTTPError as error:
        return None, _error_code(error)
    except TimeoutError:
        return None, "TEMPORARILY_UNAVAILABLE"
    except (OSError, ValueError, KeyError, TypeError):
        return None, ""
    return (facts if {"name", "version", "creation_timestamp", "source"} <= facts.keys() else None), ""


def _error_code(error: urllib.error.HTTPError) -> str:
    if error.code >= 500:  # MLflow's client would ask again for minutes
        return f"status {error.code}"
    try:
        return str(json.loads(error.read(2**16))["error_code"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hapvr" / "models"


def _cached_bundle(folder: Path) -> Path | None:
    """The bundle in a folder of the cache if all its files have the sizes that they were fetched with."""
    try:
        sizes = json.loads((folder / SIZES_FILE).read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    return _bundle_below(folder) if whole else None


def _fetch(uri: str, tracking_uri: str, folder: Path) -> Path:
    """Download a version into its folder of the cache; without a cache that can be written, into a folder of MLflow's.

    A folder that is there and no whole bundle is replaced. Of several processes one downloads, and the others wait for it.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".download-", dir=folder.parent))
    except OSError:
        return _download(uri, tracking_uri)
    try:
        with FileLock(f"{folder}.lock"):
            if (found := _cached_bundle(folder)) is not None:
                return found
            _download(uri, tracking_uri, folder=beside)
            sizes = {str(file.relative_to(beside)): file.stat().st_size for file in beside.rglob("*") if file.is_file()}
            (beside / SIZES_FILE).write_text(json.dumps(sizes), encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    found = _bundle_below(folder)
    assert found is not None
    return found


def _download(uri: str, tracking_uri: str, *, folder: Path | None = None) -> Path:
    if not is_installed("mlflow"):
        return _download_plainly(uri, tracking_uri, folder=folder)
    import mlflow
    from mlflow.exceptions import MlflowException

    mlflow.set_tracking_uri(tracking_uri)
    mlflow.set_registry_uri(tracking_uri)
    try:
        place = mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=None if folder is None else str(folder))
    except (MlflowException, OSError) as error:
        raise DataError(
            f"model: {uri} is not in the registry at {tracking_uri} ({getattr(error, 'message', error)}); "
            f"register one (`make demo` does), or give --tracking-uri"
        ) from error
    found = _bundle_below(Path(place))
    if found is None:
        raise DataError(f"model: {uri} holds no model bundle; it was not registered by this project")
    return found


def _download_plainly(uri: str, tracking_uri: str, *, folder: Path | None) -> Path:
    """As `_download` from a server that passes on artifacts, by its REST interface and without MLflow."""
    wanted = parse_model_uri(uri)
    facts = _served_version(wanted, tracking_uri) if is_server(tracking_uri) else None
    if facts is None:
        raise MissingPartError(
            f"model: {uri} cannot be had from {tracking_uri} without MLflow; give --model the folder of a bundle, "
            f"--tracking-uri the address of a server that has this version, or {FULL_REMEDY}"
        )
    query = urllib.parse.urlencode({"name": facts["name"], "version": facts["version"]})
    try:
        said = _asked(f"{tracking_uri.rstrip('/')}/api/2.0/mlflow/model-versions/get-download-uri?{query}")
        place = urllib.parse.urlsplit(str(said["artifact_uri"]))
        if place.scheme != "mlflow-artifacts":
            raise MissingPartError(
                f"model: the server at {tracking_uri} does not pass on the files of {uri}, which lie at {place.geturl()}; start "
                f"it with --artifacts-destination, or {FULL_REMEDY}"
            )
        target = Path(tempfile.mkdtemp(prefix="hapvr-model-")) if folder is None else folder
        _fetch_files(tracking_uri, place.path.strip("/"), target)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"model: {uri} cannot be fetched from {tracking_uri} ({error}); try again") from error
    found = _bundle_below(target)
    if found is None:
        raise DataError(f"model: {uri} holds no model bundle; it was not registered by this project")
    return found


def _fetch_files(server: str, path: str, target: Path) -> None:
    """All files of an artifact folder that an MLflow server passes on, into an existing folder."""
    address = f"{server.rstrip('/')}/api/2.0/mlflow-artifacts/artifacts"
    for file in _asked(f"{address}?{urllib.parse.urlencode({'path': path})}").get("files", []):
        name = str(file["path"]).rpartition("/")[2]
        if name in ("", ".", ".."):
            raise ValueError(f"it names a file {file['path']!r}")
        if file["is_dir"]:
            (target / name).mkdir()
            _fetch_files(server, f"{path}/{name}", target / name)
            continue
        with (
            urllib.request.urlopen(f"{address}/{urllib.parse.quote(f'{path}/{name}')}", timeout=FILE_S) as answer,
            (target / name).open("wb") as out,
        ):
            shutil.copyfileobj(answer, out)


def _asked(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(address, timeout=CONNECT_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _bundle_below(folder: Path) -> Path | None:
    found = sorted(folder.rglob(BUNDLE_MARK))
    return found[0].parent if found else None
