"""Writing bundles, see `hapvr.scorer.bundle`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.numpy import save_file

from hapvr import __version__
from hapvr.files import file_sha256, write_text
from hapvr.networks.whitening import Whitening, whitening_to_bytes
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.description import (
    BACKBONE_FILE,
    CALIBRATION_FILE,
    CARD_FILE,
    EVIDENCE_FILE,
    FORMAT_VERSION,
    NETWORK_FOLDER,
    SCORER_FILE,
    WHITENING_FILE,
)
from hapvr.scorer.evidence import EvidenceModel
from hapvr.scorer.onnx_networks import ONNX_FOLDER
from hapvr.settings import ServingConfig
from hapvr.video.settings import SamplingConfig

if TYPE_CHECKING:
    from hapvr.networks.encoder import FrameEncoder


NO_ONNX = {"reason": "it was not asked for"}


@dataclass(frozen=True, kw_only=True)
class BundleParts:
    """What a bundle is made of."""

    network_folder: Path
    """As `save_network` wrote it."""
    encoder: FrameEncoder
    whitening: Whitening
    sampling: SamplingConfig
    serving: ServingConfig = field(default_factory=ServingConfig)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None
    warning: str = ""
    """A sentence that goes with every answer of the model; where it is empty, the warning of random
    weights, if there are any."""
    onnx: Mapping[str, Any] | None = None
    """The result of `write_onnx`, or `{"reason": ...}` where there are no ONNX files; None: they
    were not asked for."""
    onnx_folder: Path | None = None
    """Where it wrote them; they are moved into the bundle."""


def write_bundle(folder: Path, parts: BundleParts) -> Path:
    """Assemble a bundle; an older one in `folder` is replaced. Returns `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if parts.onnx_folder is not None:
        shutil.move(parts.onnx_folder / ONNX_FOLDER, folder / ONNX_FOLDER)
    shutil.copytree(parts.network_folder, folder / NETWORK_FOLDER)
    weights = parts.encoder.state()
    if weights is not None:
        save_file(dict(weights), folder / BACKBONE_FILE)
    (folder / WHITENING_FILE).write_bytes(whitening_to_bytes(parts.whitening))
    if parts.calibration is not None:
        _write_values(folder / CALIBRATION_FILE, parts.calibration)

    description = {
        "format_version": FORMAT_VERSION,
        "hapvr_version": __version__,
        "whitening": parts.whitening.sha256,
        "backbone": parts.encoder.settings,
        "crop_px": parts.encoder.crop_px,
        # queries are sampled thoroughly, however the collection is
        "sampling": parts.sampling.model_dump(mode="json", exclude={"mode"}),
        "serving": parts.serving.model_dump(mode="json"),
        "provenance": dict(parts.provenance),
        "warning": parts.warning or random_weights_warning([parts.encoder.identity.source]),
        "onnx": dict(parts.onnx or NO_ONNX),
    }
    _write_description(folder, description)  # last: without it the folder is not a bundle
    return folder


def complete_bundle(
    folder: Path,
    *,
    evidence: EvidenceModel | str,
    card: str,
    calibration: Calibration | None = None,
) -> None:
    """Add what was fitted with the bundle itself: evidence, or the reason why there is none; a
    calibration, if the bundle had none; and the card (Markdown)."""
    if calibration is not None:
        _write_values(folder / CALIBRATION_FILE, calibration)
    if isinstance(evidence, EvidenceModel):
        _write_values(folder / EVIDENCE_FILE, evidence)
    (folder / CARD_FILE).write_text(card, encoding="utf-8")
    _write_description(folder, json.loads((folder / SCORER_FILE).read_text(encoding="utf-8")))


def _write_values(path: Path, values: Calibration | EvidenceModel) -> None:
    path.write_text(json.dumps(asdict(values), indent=1), encoding="utf-8")


def _write_description(folder: Path, description: Mapping[str, Any]) -> None:
    """Write scorer.json, with the digests of the other files."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / SCORER_FILE:
            digests[path.relative_to(folder).as_posix()] = file_sha256(path)

    text = json.dumps({**description, "files": digests}, indent=1, sort_keys=True, default=str)
    write_text(folder / SCORER_FILE, text)


def random_weights_warning(sources: Iterable[str]) -> str:
    """The warning of a model whose frozen networks have weights of these sources; empty unless some
    are random."""
    if "random" not in sources:
        return ""
    return (
        "the frozen networks of this model have random weights: it shows that the chain works, "
        "and its similarities and probabilities say nothing about videos"
    )
