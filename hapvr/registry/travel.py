"""Models that travel: a bundle as a folder with a card and digests, which can be pushed to a model
hub and pulled from there.

README.md      the model card, behind the lines that hubs read (YAML); people may edit it there
SHA256SUMS     the digest of each file but README.md, as `sha256sum --check` reads it

Beside these it has `BUNDLE_FILES`, and no others: tensors, ONNX and JSON, no pickle.
"""

import hashlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
    ModelCardData,
)
from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]  # documented there

from hapvr import __version__
from hapvr.errors import ArgumentError, DamagedError, DataError, without_logins
from hapvr.files import file_sha256, read_bytes, read_text, require_regular
from hapvr.registry.runs import Tracker
from hapvr.registry.versions import (
    WARNING_TAG,
    WEIGHTS_TAG,
    BundleRun,
    decide,
    register_bundle,
)
from hapvr.scorer import bundle as bundles
from hapvr.scorer.description import BUNDLE_FILES, CARD_FILE, Description, read_description
from hapvr.scorer.onnx_networks import ONNXNetworks, ONNXRecord
from hapvr.scorer.trial import try_bundle
from hapvr.settings import first_line

README_FILE = "README.md"
SUMS_FILE = "SHA256SUMS"
HUB = "hf://"
DIGEST_TAG = "hapvr.sha256"
_PLACE = re.compile(
    r"hf://([A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*)(?:@([A-Za-z0-9][A-Za-z0-9_./-]*))?"
)
_SUM = re.compile(r"([0-9a-f]{64})  (.+)")


def export_model(bundle: Path, folder: Path, *, licence: str = "") -> str:
    """Copy a bundle into a new folder, with card and digests; returns the SHA-256 of the list of
    digests. licence: as hubs name it. Raises ArgumentError for a folder that holds anything,
    DataError for a damaged bundle."""
    read_description(bundle).require_files(bundle)
    if folder.exists() and any(folder.iterdir()):
        raise ArgumentError(f"export: {folder} is not empty; name a new folder")
    names = sorted(name for name in BUNDLE_FILES if (bundle / name).is_file())
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle / name, folder / name)

    tags = ["video-retrieval", "video-similarity", "copy-detection"]
    head = ModelCardData(license=licence or None, library_name="hapvr", tags=tags)
    card = folder / CARD_FILE
    text = read_text(card) if card.is_file() else "# A model of HAP-VR\n"
    (folder / README_FILE).write_text(f"---\n{head.to_yaml()}\n---\n\n{text}", encoding="utf-8")
    sums = "".join(f"{file_sha256(folder / name)}  {name}\n" for name in names)
    # last: without it nobody takes the folder
    (folder / SUMS_FILE).write_text(sums, encoding="ascii")
    return hashlib.sha256(sums.encode()).hexdigest()


def push_model(bundle: Path, place: str, *, licence: str = "") -> tuple[str, str]:
    """Commit a bundle to a hub, into a private repository if there is none yet; returns digest and
    place. Files of an earlier model that this one lacks are removed; files that people added stay.
    Raises ArgumentError for a wrong place, DataError where the hub refuses, and as `export_model`
    does."""
    with tempfile.TemporaryDirectory(prefix="hapvr-model-") as scratch:
        folder = Path(scratch) / "model"
        digest = export_model(bundle, folder, licence=licence)
        names = sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        )
        with _hub(place) as (hub, repository, revision):
            hub.create_repo(repository, private=True, exist_ok=True)
            there = hub.list_repo_files(repository, revision=revision)
            operations: list[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete] = []
            for name in names:
                operations.append(CommitOperationAdd(name, folder / name))
            for name in there:
                if name in BUNDLE_FILES.difference(names):
                    operations.append(CommitOperationDelete(name))

            message = f"HAP-VR model {digest[:12]}"
            commit = hub.create_commit(
                repository, operations, commit_message=message, revision=revision
            )

    return digest, f"{HUB}{repository}@{commit.oid}"


def pull_model(
    place: str, tracker: Tracker, name: str, *, sha256: str = ""
) -> tuple[int, str, str]:
    """Register the model of a hub, `hf://ORGANISATION/NAME[@REVISION]`, or of an exported folder.
    It does not become champion.

    sha256: what `export_model` returned; "": any. Returns version, digest, and the place with its
    commit; a model that was pulled before keeps its version. Raises ArgumentError for a wrong
    place, DamagedError where a digest is another one, and DataError where the hub refuses or the
    model cannot be used."""
    with tempfile.TemporaryDirectory(prefix="hapvr-model-") as scratch:
        folder = Path(place)
        source = place
        if place.startswith(HUB):
            folder = Path(scratch) / "fetched"
            source = _download(place, folder)

        bundle = Path(scratch) / "bundle"
        digest = _copy_verified(folder, bundle, sha256=sha256, source=source)

        pulled_before = tracker.client.search_model_versions(
            f"name = '{name}' and tags.`{DIGEST_TAG}` = '{digest}'"
        )
        if pulled_before:
            return int(pulled_before[0].version), digest, source
        description = _require_usable(bundle, source)
        tags = {DIGEST_TAG: digest, WEIGHTS_TAG: description.backbone.source}
        if description.warning:
            tags[WARNING_TAG] = description.warning
        run = BundleRun(
            key=f"pulled-{digest[:16]}",
            name=f"{name}-pulled",
            params={"source": source},
            tags=tags,
        )
        version = register_bundle(tracker, name, bundle, run)
        decide(tracker.client, name, version, f"pulled from {source}")

    return version, digest, source


def _download(place: str, folder: Path) -> str:
    """Fetch the model of a hub into a folder; returns the place with its commit."""
    wanted = [SUMS_FILE, CARD_FILE, *BUNDLE_FILES]
    with _hub(place) as (hub, repository, revision):
        commit = hub.model_info(repository, revision=revision).sha
        hub.snapshot_download(repository, revision=commit, local_dir=folder, allow_patterns=wanted)

    return f"{HUB}{repository}@{commit}"


def _require_usable(bundle: Path, source: str) -> Description:
    """Run a bundle, and compare its ONNX files with its weights; returns its description. Raises
    DataError where its parts do not fit."""
    description = read_description(bundle)
    description.require_files(bundle)
    bundles.read_calibration(bundle)
    bundles.read_evidence(bundle)
    description.backbone.precision = "float32"  # in which both are compared
    try_bundle(bundle)
    in_torch = bundles.load_in_torch(bundle, description, device="cpu")
    if isinstance(description.onnx, ONNXRecord):
        from hapvr.scorer.torch_networks import compare_with_torch  # with torch

        in_onnx = ONNXNetworks(bundle, description.onnx)
        size = (2, 5, 3, description.crop_px, description.crop_px)
        noise = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
        videos = [(in_torch.regions(video), in_onnx.regions(video)) for video in noise]
        whose = f"model: {source} has ONNX files of another network; export it again: their"
        compare_with_torch(in_onnx, in_torch.network, videos, whose=whose)

    return description


def _copy_verified(folder: Path, bundle: Path, *, sha256: str, source: str) -> str:
    """Copy what SHA256SUMS lists and verify the copies; returns the digest of the list. Raises
    DamagedError."""
    name = SUMS_FILE
    try:
        listed = read_bytes(folder / name)
        digest = hashlib.sha256(listed).hexdigest()
        if sha256 not in ("", digest):
            raise ValueError(f"its SHA-256 is {digest}, and {sha256} was asked for")
        for line in listed.decode("ascii").splitlines():
            row = _SUM.fullmatch(line)
            if row is None or row[2] not in BUNDLE_FILES:
                raise ValueError(f"{SUMS_FILE} lists {line!r:.200}, which is not a file of a model")
            name = row[2]
            require_regular(folder / name)
            (bundle / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, bundle / name)
            if file_sha256(bundle / name) != row[1]:
                raise ValueError(f"{name} has another SHA-256 than {SUMS_FILE} says")
    except (OSError, ValueError) as error:
        reason = f"{name} is missing" if isinstance(error, FileNotFoundError) else error
        raise DamagedError(
            f"model: {source}: {reason}; nothing was registered: export or push it again"
        ) from error

    return digest


@contextmanager
def _hub(place: str) -> Iterator[tuple[HfApi, str, str | None]]:
    """The hub's own client, and the repository and revision of a place. Whatever the client raises,
    errors of several libraries, becomes a DataError. Raises ArgumentError for a text that is not a
    place."""
    parts = _PLACE.fullmatch(place)
    if parts is None:
        raise ArgumentError(
            f"model: {place!r:.200} names no model of a hub; expected hf://ORGANISATION/NAME"
        )

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        yield HfApi(library_name="hapvr", library_version=__version__), parts[1], parts[2]
    except Exception as error:
        raise DataError(
            f"hub: {place} is refused or cannot be reached ({type(error).__name__}: "
            f"{without_logins(first_line(error))}); "
            "check the name, the network, HF_ENDPOINT, HF_HUB_OFFLINE, and your token (`hf "
            "auth login`)"
        ) from error
