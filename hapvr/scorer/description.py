"""The description of a bundle: its files, and scorer.json, which is written last and has the digest
of every other file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field

from hapvr.errors import DamagedError, DataError
from hapvr.files import file_sha256, read_json_as
from hapvr.model.checkpoint import DESCRIPTION_FILE, WEIGHTS_FILE
from hapvr.networks.settings import COPY_NETWORKS, Precision
from hapvr.provenance import require_settings
from hapvr.scorer.onnx_networks import ONNX_FOLDER, ONNXName, ONNXRecord
from hapvr.settings import ServingConfig
from hapvr.video.settings import SamplingConfig

SCORER_FILE = "scorer.json"
BACKBONE_FILE = "backbone.safetensors"
WHITENING_FILE = "whitening.safetensors"
NETWORK_FOLDER = "network"
CALIBRATION_FILE = "calibration.json"
EVIDENCE_FILE = "evidence.json"
CARD_FILE = "model_card.md"
ONNX_FILES = tuple(f"{ONNX_FOLDER}/{name}" for name in get_args(ONNXName))
BUNDLE_FILES = {
    SCORER_FILE,
    CALIBRATION_FILE,
    EVIDENCE_FILE,
    CARD_FILE,
    BACKBONE_FILE,
    WHITENING_FILE,
    f"{NETWORK_FOLDER}/{WEIGHTS_FILE}",
    f"{NETWORK_FOLDER}/{DESCRIPTION_FILE}",
    *ONNX_FILES,
}
"""All files that a bundle may have."""

FORMAT_VERSION = 5
HINT = "copy this file from models/RUN/bundle or a back-up, or fetch the model again"


class BackboneRecord(BaseModel, extra="allow"):
    """The settings that determine the regions of a crop; further keys are settings of the backbone
    that differ from defaults."""

    architecture: str
    source: Literal["pretrained", "packaged", "file", "random"]
    sha256: str
    precision: Precision = "float32"

    @property
    def stays_in_package(self) -> bool:
        """Whether the weights are read from an installed package, and are in no bundle."""
        return self.source == "packaged" and self.architecture in COPY_NETWORKS


class NoONNX(BaseModel):
    """Why a bundle has no ONNX files, as the end of a sentence."""

    reason: str


class Description(BaseModel):
    """scorer.json."""

    format_version: Literal[5]
    hapvr_version: str
    files: dict[str, str]
    """SHA-256 of each other file, by its path in the bundle."""
    backbone: BackboneRecord
    crop_px: Annotated[int, Field(ge=1, le=1024)]
    whitening: str
    """Digest of its values."""
    sampling: SamplingConfig
    serving: ServingConfig
    warning: str
    """A sentence that goes with every answer of the model."""
    provenance: dict[str, Any]
    onnx: ONNXRecord | NoONNX

    def require_files(self, place: Path) -> None:
        """Raise DamagedError, naming a file of the bundle that is missing or is not the recorded
        one."""
        for name, digest in self.files.items():
            path = place / name
            if not path.is_file() or file_sha256(path) != digest:
                raise DamagedError(
                    f"model: {path} is missing or differs from what scorer.json says; {HINT}"
                )

    def require_features(self, place: Path, settings: Mapping[str, Any]) -> None:
        """Raise DataError, naming the difference, for features that were made with another
        backbone, crop, whitening or sampling. Imported features do not record this, and pass; their
        number of dimensions is checked when they are scored.

        place: of the bundle.
        settings: of the stored features."""
        # this imports pyarrow, which scoring does not need
        from hapvr.data.features import IMPORTED, without_extras

        if IMPORTED in settings:
            return
        own = {
            "sampling": self.sampling.identity_fields(),
            "backbone": self.backbone.model_dump(exclude_defaults=True),
            "crop_px": self.crop_px,
            "whitening": self.whitening,
        }
        require_settings(
            without_extras(settings),
            own,
            what=f"model: {place} does not go with these features",
            hint=(
                "Extract features with the model's settings, or take the model that was "
                "trained on these"
            ),
        )


class _Format(BaseModel):
    """The key that all versions of scorer.json have."""

    format_version: int


def bundle_format(folder: Path) -> int:
    """The format of a bundle: the FORMAT_VERSION of the program that wrote it. Raises
    DamagedError."""
    return read_json_as(folder / SCORER_FILE, _Format, hint=HINT).format_version


def read_description(folder: Path) -> Description:
    """What scorer.json says. Raises DataError for a folder without one and for one of another
    format, DamagedError for one that cannot be used."""
    if not (folder / SCORER_FILE).exists():
        raise DataError(
            f"model: {folder} is not a model bundle; expected a folder with {SCORER_FILE}"
        )

    try:
        return read_json_as(folder / SCORER_FILE, Description, hint=HINT)
    except DamagedError:
        its_format = bundle_format(folder)
        if its_format == FORMAT_VERSION:
            raise

    advice = "update hapvr, which is older than the model"
    if its_format < FORMAT_VERSION:
        advice = "register or fetch the model again, which is older than hapvr"
    raise DataError(
        f"model: {folder / SCORER_FILE} is of format {its_format}, and format {FORMAT_VERSION} is "
        f"read; {advice}"
    )
