"""Models that travel: a bundle as a folder with a card and digests, which goes to a model hub and comes from there.

README.md      the model card, after what hubs read of it (YAML); not in the list, so that people may edit it there
SHA256SUMS     the digest of each other file, as `sha256sum --check` reads it

Beside these a folder has what `hapvr.scorer.description` names and nothing else: tensors, ONNX networks and JSON, no pickle.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from hapvr import __version__
from hapvr.errors import ArgumentError, DamagedError, DataError
from hapvr.files import file_sha256, require_regular
from hapvr.model.description import DESCRIPTION_FILE, WEIGHTS_FILE
from hapvr.registry.runs import Tracker
from hapvr.registry.versions import WARNING_TAG, WEIGHTS_TAG, decide, log_model, register
from hapvr.scorer.bundle import load_bundle
from hapvr.scorer.description import (
    BACKBONE_FILE,
    CALIBRATION_FILE,
    CARD_FILE,
    NETWORK_FOLDER,
    ONNX_FOLDER,
    SCORER_FILE,
    WHITENING_FILE,
    ONNXName,
    read_description,
)
from hapvr.scorer.torch_bundle import load_networks
from hapvr.settings import first_line

if TYPE_CHECKING:
    from huggingface_hub import HfApi

README_FILE = "README.md"
SUMS_FILE = "SHA256SUMS"
FILES = (
    *(SCORER_FILE, CALIBRATION_FILE, CARD_FILE, BACKBONE_FILE, WHITENING_FILE),
    *(f"{NETWORK_FOLDER}/{name}" for name in (WEIGHTS_FILE, DESCRIPTION_FILE)),
    *(f"{ONNX_FOLDER}/{name}" for name in get_args(ONNXName)),
)
"""All files that a bundle may have."""
HUB = "hf://"
DIGEST_TAG = "hapvr.sha256"
TAGS = ["video-retrieval", "video-similarity", "copy-detection"]
MAX_SUMS_BYTES = 10_000

_PLACE = re.compile(r"hf://([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([A-Za-z0-9][\w./-]*))?", re.ASCII)
_SUM = re.compile(r"([0-9a-f]{64})  (.+)")


@dataclass(frozen=True)
class Pulled:
    """version: in the registry. sha256: of SHA256SUMS, so of all files. source: the place, with the commit of a hub."""

    version: int
    sha256: str
    source: str


def export_model(bundle: Path, folder: Path, *, licence: str = "") -> str:
    """Copy a bundle into a new folder, with card and digests; returns the SHA-256 of the list of digests.

    licence: as hubs name it, e.g. apache-2.0. Raises ArgumentError for a folder that holds anything, and as
    `read_description` does.
    """
    read_description(bundle)
    if folder.exists() and any(folder.iterdir()):
        raise ArgumentError(f"export: {folder} is not empty; name a new folder")
    names = [name for name in FILES if (bundle / name).is_file()]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle / name, folder / name)
    head = {"library_name": "hapvr", "tags": TAGS, **({"license": licence} if licence else {})}
    lines = [f"{key}: {json.dumps(value)}" for key, value in head.items()]  # JSON is YAML
    card = (folder / CARD_FILE).read_text(encoding="utf-8") if CARD_FILE in names else "# A model of HAP-VR\n"
    (folder / README_FILE).write_text("\n".join(["---", *lines, "---", "", card]), encoding="utf-8")
    sums = "".join(f"{file_sha256(folder / name)}  {name}\n" for name in names)
    (folder / SUMS_FILE).write_text(sums, encoding="ascii")  # last: without it nobody takes the folder
    return hashlib.sha256(sums.encode()).hexdigest()


def push_model(bundle: Path, place: str, *, licence: str = "") -> tuple[str, str]:
    """Commit a bundle to a hub, whose repository is made private where there is none; returns digest and commit.

    Files of an earlier model that this one lacks are removed, those of people stay. Raises ArgumentError for a wrong place,
    DataError where the hub refuses, and as `export_model` does.
    """
    repository, revision = _parsed(place)
    if revision is not None:
        raise ArgumentError(f"model: {place}: a revision is for `hapvr models pull`; name the repository alone")
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    with tempfile.TemporaryDirectory(prefix="hapvr-model-") as scratch:
        folder = Path(scratch) / "model"
        digest = export_model(bundle, folder, licence=licence)
        names = [name for name in (README_FILE, SUMS_FILE, *FILES) if (folder / name).exists()]
        with _hub_errors(place):
            hub = _client()
            hub.create_repo(repository, private=True, exist_ok=True)
            gone = set(hub.list_repo_files(repository)).intersection(FILES).difference(names)
            made = hub.create_commit(
                repository,
                [
                    *(CommitOperationAdd(name, folder / name) for name in names),
                    *(CommitOperationDelete(name) for name in sorted(gone)),
                ],
                commit_message=f"HAP-VR model {digest[:12]}",
            )
    return digest, str(made.oid)


def pull_model(place: str, tracker: Tracker, name: str, *, sha256: str = "") -> Pulled:
    """Register the model of a hub, `hf://ORGANISATION/NAME` or `...@REVISION`, or of an exported folder; not as champion.

    sha256: what `export_model` returned; "": any. A model that was pulled before keeps its version. Raises ArgumentError for
    a wrong place, DamagedError where a digest is another one, and DataError where the hub refuses or the model cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="hapvr-model-") as scratch:
        folder, source = Path(place), place
        if place.startswith(HUB):
            folder = Path(scratch) / "fetched"
            source = _fetch(place, folder)
        bundle = Path(scratch) / "bundle"
        digest = _copy_verified(folder, bundle, sha256=sha256, source=source)
        found = tracker.client.search_model_versions(f"name = '{name}' and tags.`{DIGEST_TAG}` = '{digest}'")
        if found:
            return Pulled(int(found[0].version), digest, source)
        description = read_description(bundle)
        load_bundle(bundle)
        load_networks(bundle, description, device="cpu", dtype="float32")  # those that the ONNX files stand for
        tags = {DIGEST_TAG: digest, WEIGHTS_TAG: description.backbone.source}
        tags |= {WARNING_TAG: description.warning} if description.warning else {}
        run_id = tracker.start(f"pulled-{digest[:16]}", name=f"{name}-pulled", params={"source": source}, tags=tags)
        if (bundle / CARD_FILE).exists():
            tracker.client.log_artifact(run_id, str(bundle / CARD_FILE))
        uri = log_model(tracker, run_id, bundle)
        tracker.client.set_terminated(run_id)
        version = register(tracker, name, run_id=run_id, model_uri=uri, target=None, tags=tags)
        decide(tracker.client, name, version, f"pulled from {source}")
    return Pulled(version, digest, source)


def _copy_verified(folder: Path, bundle: Path, *, sha256: str, source: str) -> str:
    """Copy what SHA256SUMS lists and verify the copies; returns the digest of the list. Raises DamagedError."""

    def refuse(reason: str) -> DamagedError:
        return DamagedError(f"model: {source}: {reason}; nothing was registered: fetch or push it again")

    try:
        require_regular(folder / SUMS_FILE)
        with (folder / SUMS_FILE).open("rb") as file:
            listed = file.read(MAX_SUMS_BYTES)
    except OSError as error:
        raise refuse(f"no {SUMS_FILE}, so it was not exported by this project ({error.strerror})") from error
    digest = hashlib.sha256(listed).hexdigest()
    if sha256 not in ("", digest):
        raise refuse(f"its SHA-256 is {digest}, and {sha256} was asked for")
    for line in listed.decode(errors="replace").splitlines():
        row = _SUM.fullmatch(line)
        if row is None or row[2] not in FILES:
            raise refuse(f"{SUMS_FILE} lists {line!r:.200}, which is no file of a model")
        try:
            (bundle / row[2]).parent.mkdir(parents=True, exist_ok=True)
            require_regular(folder / row[2])
            shutil.copyfile(folder / row[2], bundle / row[2])
        except FileNotFoundError as error:
            raise refuse(f"{row[2]} is missing") from error
        if file_sha256(bundle / row[2]) != row[1]:
            raise refuse(f"{row[2]} has another SHA-256 than {SUMS_FILE} says")
    return digest


def _parsed(place: str) -> tuple[str, str | None]:
    """Repository and revision. Raises ArgumentError."""
    found = _PLACE.fullmatch(place)
    if found is None:
        raise ArgumentError(f"model: {place!r:.200} names no model of a hub; wanted hf://ORGANISATION/NAME")
    return found[1], found[2]


def _fetch(place: str, folder: Path) -> str:
    """Fetch the files of a model, no others; returns the place with its commit."""
    repository, revision = _parsed(place)
    with _hub_errors(place):
        hub = _client()
        commit = hub.model_info(repository, revision=revision).sha
        hub.snapshot_download(repository, revision=commit, local_dir=folder, allow_patterns=[SUMS_FILE, *FILES])
    return f"{HUB}{repository}@{commit}"


def _client() -> HfApi:
    """The hub's own client, which draws bars on a terminal alone."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]  # documented there

    if not sys.stderr.isatty():
        disable_progress_bars()
    return HfApi(library_name="hapvr", library_version=__version__)


@contextmanager
def _hub_errors(place: str) -> Iterator[None]:
    """Whatever the hub's client raises (errors of several libraries) as a DataError."""
    try:
        yield
    except Exception as error:
        raise DataError(
            f"hub: {place} is refused or cannot be reached ({type(error).__name__}: {first_line(error)}); check the name, the "
            "network, HF_ENDPOINT, HF_HUB_OFFLINE, and your token (`hf auth login`)"
        ) from error
