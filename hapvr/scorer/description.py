"""What a bundle says of itself in scorer.json; read without torch.

scorer.json               sampling, backbone identity and precision, crop, limits, where it came from; written last
calibration.json          similarity to probability; not there where the model has none
evidence.json             what a search knows of a candidate to probability; not there where the model has none
model_card.md             data, settings, metrics and limits, for people; may be absent
backbone.safetensors      the frozen weights, so that neither hub nor cache is needed where it is loaded
whitening.safetensors
network/                  network.safetensors, network.json
onnx/                     the same networks as ONNX files, see `hapvr.scorer.onnx_networks`; absent where scorer.json says why
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from hapvr.errors import DamagedError, DataError
from hapvr.files import file_sha256, read_json_as, write_atomic
from hapvr.model.description import read_description as read_network
from hapvr.model.settings import NetworkSettings
from hapvr.networks.settings import Precision
from hapvr.provenance import Provenance
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.evidence import EvidenceModel
from hapvr.settings import ServingConfig
from hapvr.video.settings import SamplingConfig

SCORER_FILE = "scorer.json"
BACKBONE_FILE = "backbone.safetensors"
WHITENING_FILE = "whitening.safetensors"
NETWORK_FOLDER = "network"
CALIBRATION_FILE = "calibration.json"
EVIDENCE_FILE = "evidence.json"
CARD_FILE = "model_card.md"
FORMAT_VERSION = 4
HINT = "fetch the model again, or register it again with this version"

ONNX_FOLDER = "onnx"
ONNXName = Literal["backbone.onnx", "embed.onnx", "frames.onnx", "compare.onnx"]


class BackboneRecord(BaseModel, extra="allow"):
    """What determines the regions of a crop; further keys are settings of the backbone that differ from defaults."""

    architecture: str
    source: Literal["pretrained", "packaged", "file", "random"]
    sha256: str
    precision: Precision = "float32"


class ONNXRecord(BaseModel, extra="allow"):
    """settings: of the similarity network. Further keys say how the files were checked."""

    settings: NetworkSettings
    files: Annotated[list[ONNXName], Field(min_length=3)]


class NoONNX(BaseModel):
    """Why a bundle has no ONNX files, as the end of a sentence."""

    reason: str


class Description(BaseModel):
    """scorer.json. files: SHA-256 of each other file, by its path in the bundle. whitening: digest of its values. warning: a
    sentence that goes with every answer of the model."""

    format_version: Literal[4]
    hapvr_version: str
    files: dict[str, str]
    backbone: BackboneRecord
    crop_px: Annotated[int, Field(ge=1, le=1024)]
    whitening: str
    sampling: SamplingConfig
    serving: ServingConfig
    warning: str
    provenance: dict[str, Any]
    onnx: ONNXRecord | NoONNX

    def require_files(self, place: Path) -> None:
        """Raise DamagedError, naming a file of the bundle that is missing or is not the recorded one."""
        for name, digest in self.files.items():
            path = place / name
            if not path.is_file() or file_sha256(path) != digest:
                raise DamagedError(f"model: {path} is missing or differs from what scorer.json says; {HINT}")

    def require_features(self, place: Path, settings: Mapping[str, Any]) -> None:
        """Raise DataError, naming what differs, where features were made by another backbone, crop, whitening or sampling.

        place: of the bundle. settings: of the stored features. Imported ones do not say, and pass; the number of dimensions
        is checked when they are scored.
        """
        from hapvr.data.features import without_extras  # with pyarrow, which scoring does without

        if "imported" in settings:
            return
        own = {
            "sampling": self.sampling.identity_fields(),
            "backbone": self.backbone.model_dump(exclude_defaults=True),
            "crop_px": self.crop_px,
            "whitening": self.whitening,
        }
        found = Provenance("features", without_extras(settings))
        if differences := Provenance("features", own).differences(found):
            raise DataError(
                f"model: {place} does not go with these features: {'; '.join(differences)}. Extract features with the "
                "model's settings, or take the model that was trained on these"
            )


def read_description(folder: Path) -> Description:
    """What scorer.json says. Raises DataError for a folder without one, DamagedError for one that cannot be used."""
    if not (folder / SCORER_FILE).exists():
        raise DataError(f"model: {folder} is not a model bundle; wanted a folder with {SCORER_FILE}")
    return read_json_as(folder / SCORER_FILE, Description, hint=HINT)


def is_untrained(folder: Path) -> bool:
    """Whether the network of a bundle compares features as the frozen backbone gives them."""
    settings = read_network(folder / NETWORK_FOLDER).settings
    return isinstance(settings, NetworkSettings) and not (
        settings.attention or settings.comparator or settings.binary_bits
    )


def read_calibration(folder: Path) -> Calibration | None:
    """The calibration of a bundle, None if it has none. Raises DamagedError for one that cannot be used."""
    path = folder / CALIBRATION_FILE
    return read_json_as(path, Calibration, hint=HINT) if path.exists() else None


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Add to a bundle what `read_calibration` reads."""
    (folder / CALIBRATION_FILE).write_text(json.dumps(asdict(calibration), indent=1), encoding="utf-8")


def read_evidence(folder: Path) -> EvidenceModel | None:
    """How a bundle weighs what a search knows, None if it does not say. Raises DamagedError for a file that cannot be used."""
    path = folder / EVIDENCE_FILE
    return read_json_as(path, EvidenceModel, hint=HINT) if path.exists() else None


def complete_bundle(
    folder: Path, *, evidence: EvidenceModel | str, card: str, calibration: Calibration | None = None
) -> None:
    """Add what was fitted with the bundle itself: evidence, or a reason why there is none; calibration, where it had none; and
    the card, in Markdown."""
    if calibration is not None:
        write_calibration(folder, calibration)
    if isinstance(evidence, EvidenceModel):
        (folder / EVIDENCE_FILE).write_text(json.dumps(asdict(evidence), indent=1), encoding="utf-8")
    (folder / CARD_FILE).write_text(card, encoding="utf-8")
    description = json.loads((folder / SCORER_FILE).read_text(encoding="utf-8"))
    write_description(folder, description)


def write_description(folder: Path, description: Mapping[str, Any]) -> None:
    """Write scorer.json, with the digests of the other files, as `read_description` reads it."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / SCORER_FILE]
    digests = {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}
    with write_atomic(folder / SCORER_FILE) as part:
        text = json.dumps({**description, "files": digests}, indent=1, sort_keys=True, default=str)
        part.write_text(text, encoding="utf-8")


def random_weights_warning(sources: Iterable[str]) -> str:
    """The warning of a model whose frozen networks have weights of these sources; empty unless some are random."""
    if "random" not in sources:
        return ""
    return (
        "the frozen networks of this model have random weights: it shows that the chain works, and its similarities and "
        "probabilities say nothing about videos"
    )
