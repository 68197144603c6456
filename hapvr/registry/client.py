"""The door to MLflow: where a registry is, its pages, and what stands behind a name such as `models:/hapvr@champion`.

Importing MLflow and opening its database takes seconds, and `hapvr[search]` does without it. So a listing next to a SQLite
store repeats aliases, versions and the places of their bundles. The registry alone decides: the listing is derived from it
after each change, carries the state of the database that it was made from, and is derived again where that has moved on.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from hapvr.errors import ArgumentError, DamagedError, DataError, MissingPartError, RegistryError
from hapvr.files import read_json_as, write_atomic
from hapvr.installed import FULL_HINT, is_installed
from hapvr.provenance import file_sha256

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

CONNECT_S = 5.0
"""Seconds in which a server must answer. MLflow's own client would retry for minutes."""

BUNDLE_MARK = "scorer.json"
LISTING_NAME = "registered.json"
SQLITE = "sqlite:///"
SQLITE_MAGIC = b"SQLite format 3\0"
HEALTHY = b"OK"
PAGE_MODE = "?workflowType=machine_learning"
"""Without it MLflow's pages show conversations first, and hide runs and models."""

_STORE = re.compile(r"https?://.|sqlite:///.|(postgresql|mysql|mssql)(\+[a-z0-9]+)?://.")
_MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>[0-9]+))")


@dataclass(frozen=True)
class RegisteredVersion:
    """A version of a registered model. created: when, in ms; place: URI of its files; digest: of its bundle's BUNDLE_MARK, ""
    if not known."""

    name: str
    version: str
    created: int
    place: str
    digest: str = ""

    @property
    def uri(self) -> str:
        return f"models:/{self.name}/{self.version}"


@dataclass(frozen=True)
class Listing:
    """What a SQLite registry holds. state: of the database that it was made from; aliases: `NAME@ALIAS` -> version."""

    state: int
    aliases: dict[str, str]
    versions: list[RegisteredVersion]


def is_server(tracking_uri: str) -> bool:
    """Whether the address is that of an MLflow server."""
    return tracking_uri.startswith(("http://", "https://"))


def require_store(tracking_uri: str) -> None:
    """Raise DataError unless a store is there: a server that answers within CONNECT_S, or a database file.

    MLflow would make an empty database, and the folders above it, for an address that is mistyped. Raises ArgumentError for
    what is not an address of a store.
    """
    if _STORE.match(tracking_uri) is None:
        raise ArgumentError(
            f"--tracking-uri is {tracking_uri!r}; wanted the http(s) address of an MLflow server, or sqlite:///FILE"
        )
    hint = (
        "; `make demo` registers a model and `make ui` serves a registry, tracking.uri in the configuration and --tracking-uri "
        "say where another registry is"
    )
    try:
        if is_server(tracking_uri):
            with urllib.request.urlopen(f"{tracking_uri.rstrip('/')}/health", timeout=CONNECT_S) as answer:
                found = answer.read(64).strip() == HEALTHY
        elif tracking_uri.startswith(SQLITE):
            with _database(tracking_uri).open("rb") as file:
                found = file.read(16) == SQLITE_MAGIC
        else:
            found = True
    except urllib.error.HTTPError as error:
        found = error.code != 404  # it wants a login, or is ill; what it says to real requests is for the client
    except (OSError, ValueError) as error:
        kind = "MLflow server answers" if is_server(tracking_uri) else "registry is"
        raise DataError(f"tracking: no {kind} at {tracking_uri} ({error}){hint}") from error
    if not found:
        raise DataError(f"tracking: what is at {tracking_uri} is not an MLflow registry{hint}")


def mlflow_client(tracking_uri: str, *, writing: bool = False) -> MlflowClient:
    """MLflow's client of an address. writing: whether something will be changed.

    Raises as `require_store` does, DataError for a database that cannot be written, and MissingPartError without MLflow.
    """
    require_store(tracking_uri)
    if not _has_client(tracking_uri):
        raise MissingPartError(
            f"model: the registry at {tracking_uri} is asked by MLflow's client, which is not installed; give --model the "
            f"folder of a bundle, install `mlflow-skinny` for a server (`pip install 'hapvr[registry]'`), or {FULL_HINT}"
        )
    if writing and tracking_uri.startswith(SQLITE):
        path = _database(tracking_uri)
        if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
            raise DataError(f"tracking: {path} cannot be written; correct its permissions and those of its folder")
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)


def registered_version(uri: str, tracking_uri: str) -> RegisteredVersion:
    """What `models:/NAME@ALIAS` or `models:/NAME/VERSION` stands for.

    Raises ArgumentError for another kind of name, DataError if there is no such registry or version, and RegistryError where
    the registry does not say.
    """
    wanted = _MODEL_URI.fullmatch(uri)
    if wanted is None:
        raise ArgumentError(
            f"model: {uri!r} is not the name of a version; wanted models:/NAME@ALIAS or models:/NAME/VERSION"
        )
    name, alias, number = wanted["name"], wanted["alias"], wanted["version"]
    require_store(tracking_uri)
    if tracking_uri.startswith(SQLITE):
        listing = _listing(tracking_uri)
        number = number or listing.aliases.get(f"{name}@{alias}")
        found = [version for version in listing.versions if (version.name, version.version) == (name, number)]
        if found:
            return found[0]
    else:
        client = mlflow_client(tracking_uri)
        from mlflow.exceptions import MlflowException

        try:
            row = client.get_model_version(name, number) if number else client.get_model_version_by_alias(name, alias)
            return _version(client, row)
        except MlflowException as error:
            if not is_absent(error):
                raise RegistryError(
                    f"model: the registry at {tracking_uri} does not say where {uri} is ({error.error_code}); try again later"
                ) from error
    raise DataError(
        f"model: {uri} is not in the registry at {tracking_uri}; `hapvr models list` shows what it has and why there is no "
        "champion, `hapvr models promote VERSION` makes one, --tracking-uri says where another registry is"
    )


def pinned_uri(uri: str, tracking_uri: str) -> str:
    """`models:/NAME/VERSION` of what is registered as such or e.g. as `models:/hapvr@champion`; raises as above."""
    return registered_version(uri, tracking_uri).uri


def registered_bundle(uri: str, tracking_uri: str) -> Path:
    """The local bundle of a registered model such as `models:/hapvr@champion`.

    Raises as `registered_version` does, DataError where the version holds no bundle, and DamagedError where the bundle is not
    the one that was listed.
    """
    found = registered_version(uri, tracking_uri)
    bundle = _local_bundle(found.place) or _bundle_below(_fetched(found, tracking_uri))
    if bundle is None:
        raise DataError(f"model: {uri} holds no model bundle at {found.place}; it was not registered by this project")
    if found.digest and file_sha256(bundle / BUNDLE_MARK) != found.digest:
        raise DamagedError(
            f"{bundle / BUNDLE_MARK} is not the file that {uri} was listed with; register the model again"
        )
    return bundle


def write_listing(tracking_uri: str, known: Sequence[RegisteredVersion] = ()) -> Listing:
    """Derive the listing of a SQLite registry, and write it where its folder can be written.

    known: versions that were listed before. A version never changes, so those keep the digest of their first listing.
    """
    database = _database(tracking_uri)
    state, client = _database_state(database), mlflow_client(tracking_uri)
    listed = {(version.name, version.version, version.created): version for version in known}
    aliases, versions = {}, []
    for name in [model.name for model in client.search_registered_models(max_results=1000)]:
        for row in client.search_model_versions(f"name = '{name}'"):
            key = (name, str(row.version), row.creation_timestamp)
            versions.append(listed.get(key) or _version(client, row))
        for alias, number in client.get_registered_model(name).aliases.items():
            aliases[f"{name}@{alias}"] = str(number)
    listing = Listing(state, aliases, versions)
    with suppress(OSError), write_atomic(database.with_name(LISTING_NAME)) as part:
        part.write_text(json.dumps(asdict(listing), indent=1), encoding="utf-8")
    return listing


def is_absent(error: Any) -> bool:
    """Whether an MlflowException says that a model, an alias or a version is not there."""
    return error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")  # the second is for an alias


def runs_page(base: str, experiment_id: str, run_id: str = "") -> str:
    """Address of an experiment's runs, or of one of them, in MLflow's UI at `base`."""
    return f"{base.rstrip('/')}/#/experiments/{experiment_id}/runs{run_id and '/' + run_id}{PAGE_MODE}"


def model_page(base: str, name: str, version: int | None = None) -> str:
    """Address of a registered model's versions, or of one of them."""
    return f"{base.rstrip('/')}/#/models/{name}{'' if version is None else f'/versions/{version}'}{PAGE_MODE}"


def _has_client(tracking_uri: str) -> bool:
    """Whether MLflow's client is installed; `mlflow-skinny` has that of servers."""
    return is_installed("mlflow") and (is_server(tracking_uri) or is_installed("sqlalchemy"))


def _database(tracking_uri: str) -> Path:
    return Path(tracking_uri.removeprefix(SQLITE))


def _database_state(path: Path) -> int:
    """SQLite's change counter, which every transaction increments (https://sqlite.org/fileformat.html, 1.3.7)."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(28)[24:], "big")


def _listing(tracking_uri: str) -> Listing:
    """The listing of a SQLite registry: derived again where the database has changed and MLflow is installed."""
    database, can_ask = _database(tracking_uri), _has_client(tracking_uri)
    hint = "`hapvr models show champion` of a full installation writes it"
    try:
        listing = read_json_as(database.with_name(LISTING_NAME), Listing, hint=hint)
    except DamagedError:
        if not can_ask:
            raise
        return write_listing(tracking_uri)
    if can_ask and listing.state != _database_state(database):
        return write_listing(tracking_uri, listing.versions)
    return listing


def list_again(tracking_uri: str) -> None:
    """After a change of a registry: bring its listing up to date, where it has one."""
    if tracking_uri.startswith(SQLITE):
        _listing(tracking_uri)


def _version(client: MlflowClient, row: ModelVersion) -> RegisteredVersion:
    """What MLflow says of a version, with the digest of a bundle on this machine."""
    name, number = str(row.name), str(row.version)
    place = client.get_model_version_download_uri(name, number)
    bundle = _local_bundle(place)
    digest = file_sha256(bundle / BUNDLE_MARK) if bundle else ""
    return RegisteredVersion(name, number, int(row.creation_timestamp), place, digest)


def _local_bundle(place: str) -> Path | None:
    """The bundle below a file: URI; None for files that lie elsewhere."""
    address = urllib.parse.urlsplit(place)
    return _bundle_below(Path(urllib.request.url2pathname(address.path))) if address.scheme == "file" else None


def _bundle_below(folder: Path) -> Path | None:
    found = sorted(folder.rglob(BUNDLE_MARK))
    return found[0].parent if found else None


def _fetched(wanted: RegisteredVersion, tracking_uri: str) -> Path:
    """The files of a version in the user's cache. Of several processes one downloads them, and the others wait for it."""
    mlflow_client(tracking_uri)
    from mlflow.artifacts import download_artifacts
    from mlflow.exceptions import MlflowException

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hapvr" / "models"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that may only be read
        cache = Path(tempfile.mkdtemp(prefix="hapvr-models-"))
    folder = cache / hashlib.sha256(f"{tracking_uri} {wanted}".encode()).hexdigest()[:32]
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            part = folder.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            try:
                download_artifacts(artifact_uri=wanted.place, tracking_uri=tracking_uri, dst_path=str(part))
            except (MlflowException, OSError) as error:
                raise DataError(
                    f"model: {wanted.uri} cannot be fetched from {wanted.place} ({error}); try again"
                ) from error
            part.rename(folder)
    return folder
