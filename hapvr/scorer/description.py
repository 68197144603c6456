"""What a bundle says of itself in scorer.json; read without torch.

scorer.json               sampling, backbone identity and precision, crop, limits, where it came from; written last
calibration.json          similarity to probability; not there where the model has none
evidence.json             what a search knows of a candidate to probability; not there where the model has none
model_card.md             data, settings, metrics and limits, for people; may be absent
backbone.safetensors      the frozen weights, so that neither hub nor cache is needed where it is loaded; absent where the
                          backbone is a TorchScript file, which is code: whoever loads the bundle names it by
                          HAPVR_BACKBONE_FILE, and its digest must be the recorded one
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

from hapvr.errors import DataError
from hapvr.files import read_json_as
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
FORMAT_VERSION = 3
TORCHSCRIPT = "torchscript"
HINT = "fetch the model again, or register it again with this version"

ONNX_FOLDER = "onnx"
ONNXName = Literal["backbone.onnx", "embed.onnx", "frames.onnx", "compare.onnx"]


class BackboneRecord(BaseModel, extra="allow"):
    """What determines the regions of a crop; further keys are settings of the backbone that differ from defaults."""

    architecture: str
    source: Literal["pretrained", "packaged", "file", "random", "torchscript"]
    sha256: str
    precision: Precision = "float32"


class ONNXFile(BaseModel):
    sha256: str
    bytes: int


class ONNXRecord(BaseModel, extra="allow"):
    """settings: of the similarity network. files: by name. Further keys say how they were checked."""

    settings: NetworkSettings
    files: Annotated[dict[ONNXName, ONNXFile], Field(min_length=3)]


class NoONNX(BaseModel):
    """Why a bundle has no ONNX files, as the end of a sentence."""

    reason: str


class Description(BaseModel):
    """scorer.json. whitening: its digest. warning: a sentence that goes with every answer of the model."""

    format_version: Literal[3]
    hapvr_version: str
    backbone: BackboneRecord
    crop_px: Annotated[int, Field(ge=1, le=1024)]
    whitening: str
    sampling: SamplingConfig
    serving: ServingConfig
    warning: str
    provenance: dict[str, Any]
    onnx: ONNXRecord | NoONNX

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


def random_weights_warning(sources: Iterable[str]) -> str:
    """The warning of a model whose frozen networks have weights of these sources; empty unless some are random."""
    if "random" not in sources:
        return ""
    return (
        "the frozen networks of this model have random weights: it shows that the chain works, and its similarities and "
        "probabilities say nothing about videos"
    )
