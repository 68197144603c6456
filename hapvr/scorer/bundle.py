"""A bundle: a model's networks in one folder that scores raw videos anywhere; no pickle, no hub, no
data root. Its files:

scorer.json             sampling, backbone identity and precision, crop, limits; written last
calibration.json        similarity to probability; absent where the model has none
evidence.json           what a search knows of a candidate to probability; absent where it has none
model_card.md           data, settings, metrics and limits, for people; may be absent
backbone.safetensors    the frozen weights, so that loading needs neither hub nor cache; absent for
                        networks whose files stay in their package
whitening.safetensors
network/                network.safetensors, network.json
onnx/                   the same networks as ONNX files, see `hapvr.scorer.onnx_networks`; absent
                        where scorer.json says why
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, Field

from hapvr import __version__
from hapvr.errors import (
    FULL_HINT,
    DamagedError,
    DataError,
    MissingPartError,
    is_installed,
    on_processor,
)
from hapvr.files import file_sha256, read_json_as, write_text
from hapvr.model.checkpoint import DESCRIPTION_FILE, WEIGHTS_FILE, read_description as read_network
from hapvr.model.settings import NetworkSettings
from hapvr.networks.copies import PackagedCopyNetwork, open_packaged_copy_network
from hapvr.networks.openvino_runtime import CompiledNetwork
from hapvr.networks.settings import COPY_NETWORKS, BackboneConfig, Precision, picture_of
from hapvr.provenance import require_settings
from hapvr.scorer.access import limits_from_environment
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.evidence import EvidenceModel
from hapvr.scorer.onnx_networks import ONNX_FOLDER, ONNXName, ONNXNetworks, ONNXRecord
from hapvr.scorer.plain_networks import PlainNetworks
from hapvr.scorer.scorer import VideoScorer
from hapvr.settings import ServingConfig, first_line
from hapvr.video.frames import encode_jpeg
from hapvr.video.settings import SamplingConfig
from hapvr.workers import call_limited

if TYPE_CHECKING:
    from hapvr.model.family import VideoNetwork
    from hapvr.networks.encoder import FrameEncoder
    from hapvr.networks.whitening import Whitening
    from hapvr.scorer.scorer import AnyNetworks
    from hapvr.scorer.torch_networks import TorchNetworks

SCORER_FILE = "scorer.json"
BACKBONE_FILE = "backbone.safetensors"
WHITENING_FILE = "whitening.safetensors"
NETWORK_FOLDER = "network"
CALIBRATION_FILE = "calibration.json"
EVIDENCE_FILE = "evidence.json"
CARD_FILE = "model_card.md"
BUNDLE_FILES = {
    *(SCORER_FILE, CALIBRATION_FILE, EVIDENCE_FILE, CARD_FILE, BACKBONE_FILE, WHITENING_FILE),
    *(f"{NETWORK_FOLDER}/{name}" for name in (WEIGHTS_FILE, DESCRIPTION_FILE)),
    *(f"{ONNX_FOLDER}/{name}" for name in get_args(ONNXName)),
}
"""All that a bundle may have."""
TRIAL_MEMORY_BYTES, TRIAL_TIMEOUT_S = 16 << 30, 120.0
HINT = "copy this file from models/RUN/bundle or a back-up, or fetch the model again"


class BackboneRecord(BaseModel, extra="allow"):
    """What determines the regions of a crop; further keys are settings of the backbone that differ
    from defaults."""

    architecture: str
    source: Literal["pretrained", "packaged", "file", "random"]
    sha256: str
    precision: Precision = "float32"

    @property
    def stays_in_package(self) -> bool:
        """Whether the weights are read from an installed package, and no bundle has them."""
        return self.source == "packaged" and self.architecture in COPY_NETWORKS


class NoONNX(BaseModel):
    """Why a bundle has no ONNX files, as the end of a sentence."""

    reason: str


class Description(BaseModel):
    """scorer.json. files: SHA-256 of each other file, by its path in the bundle. whitening: digest
    of its values. warning: a sentence that goes with every answer of the model."""

    format_version: Literal[5]
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
        """Raise DamagedError, naming a file of the bundle that is missing or is not the recorded
        one."""
        for name, digest in self.files.items():
            path = place / name
            if not path.is_file() or file_sha256(path) != digest:
                raise DamagedError(
                    f"model: {path} is missing or differs from what scorer.json says; {HINT}"
                )

    def require_features(self, place: Path, settings: Mapping[str, Any]) -> None:
        """Raise DataError, naming what differs, where features were made by another backbone, crop,
        whitening or sampling. place: of the bundle. settings: of the stored features. Imported ones
        do not say, and pass; the number of dimensions is checked when they are scored."""
        from hapvr.data.features import (
            IMPORTED,
            without_extras,
        )  # with pyarrow, which scoring does without

        if IMPORTED in settings:
            return
        own = {
            "sampling": self.sampling.identity_fields(),
            "backbone": self.backbone.model_dump(exclude_defaults=True),
            "crop_px": self.crop_px,
            "whitening": self.whitening,
        }
        hint = (
            "Extract features with the model's settings, or take the model that was "
            "trained on these"
        )
        require_settings(
            without_extras(settings),
            own,
            what=f"model: {place} does not go with these features",
            hint=hint,
        )


def read_description(folder: Path) -> Description:
    """What scorer.json says. Raises DataError for a folder without one, DamagedError for one that
    cannot be used."""
    if not (folder / SCORER_FILE).exists():
        raise DataError(
            f"model: {folder} is not a model bundle; wanted a folder with {SCORER_FILE}"
        )
    return read_json_as(folder / SCORER_FILE, Description, hint=HINT)


def read_calibration(folder: Path) -> Calibration | None:
    """The calibration of a bundle, None if it has none. Raises DamagedError for one that cannot be
    used."""
    path = folder / CALIBRATION_FILE
    return read_json_as(path, Calibration, hint=HINT) if path.exists() else None


def read_evidence(folder: Path) -> EvidenceModel | None:
    """How a bundle weighs what a search knows, None if it does not say. Raises DamagedError for a
    file that cannot be used."""
    path = folder / EVIDENCE_FILE
    return read_json_as(path, EvidenceModel, hint=HINT) if path.exists() else None


def is_untrained(folder: Path) -> bool:
    """Whether the network of a bundle compares features as the frozen backbone gives them."""
    settings = read_network(folder / NETWORK_FOLDER).settings
    return isinstance(settings, NetworkSettings) and not (
        settings.attention or settings.comparator or settings.binary_bits
    )


def random_weights_warning(sources: Iterable[str]) -> str:
    """The warning of a model whose frozen networks have weights of these sources; empty unless some
    are random."""
    said = (
        "the frozen networks of this model have random weights: it shows that the chain "
        "works, and its similarities and "
        "probabilities say nothing about videos"
    )
    return said if "random" in sources else ""


def write_bundle(
    folder: Path,
    *,
    network_folder: Path,
    encoder: FrameEncoder,
    whitening: Whitening,
    sampling: SamplingConfig,
    serving: ServingConfig | None = None,
    provenance: Mapping[str, Any] | None = None,
    calibration: Calibration | None = None,
    warning: str = "",
    onnx: Mapping[str, Any] | None = None,
    onnx_folder: Path | None = None,
) -> Path:
    """Assemble a bundle; an older one in `folder` is replaced. Returns `folder`.

    warning: a sentence that goes with every answer of the model. onnx: what `write_onnx` returned,
    or `{"reason": ...}` where there is none. onnx_folder: where it wrote; moved into the bundle."""
    from safetensors.numpy import save_file  # which scoring does without

    from hapvr.networks.whitening import whitening_to_bytes

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if onnx_folder is not None:
        shutil.move(onnx_folder / ONNX_FOLDER, folder / ONNX_FOLDER)
    shutil.copytree(network_folder, folder / NETWORK_FOLDER)
    weights = encoder.state()
    if weights is not None:
        save_file(dict(weights), folder / BACKBONE_FILE)
    (folder / WHITENING_FILE).write_bytes(whitening_to_bytes(whitening))
    if calibration is not None:
        _write_values(folder / CALIBRATION_FILE, calibration)
    description = {
        "format_version": 5,
        "hapvr_version": __version__,
        "whitening": whitening.sha256,
        "backbone": encoder.settings,
        "crop_px": encoder.crop_px,
        # queries are sampled thoroughly, however the collection is
        "sampling": sampling.model_dump(mode="json", exclude={"mode"}),
        "serving": (serving or ServingConfig()).model_dump(mode="json"),
        "provenance": dict(provenance or {}),
        "warning": warning or random_weights_warning([encoder.identity.source]),
        "onnx": dict(onnx or {"reason": "it was not asked for"}),
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
    """Add what was fitted with the bundle itself: evidence, or why there is none; calibration, if
    it had none; and the card (Markdown)."""
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
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / SCORER_FILE
    ]
    digests = {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}
    text = json.dumps({**description, "files": digests}, indent=1, sort_keys=True, default=str)
    write_text(folder / SCORER_FILE, text)


def load_bundle(folder: Path, *, device: str = "cpu") -> VideoScorer:
    """The scorer of a bundle, with its limits as the environment changes them. device: auto: a GPU
    where there is one. A GPU runs the networks in torch, a processor runs the bundle's ONNX files,
    and torch only for a bundle without any. Raises DataError naming what is missing or damaged,
    ConfigError for a wrong limit, and MissingPartError where the bundle needs torch and torch is
    not installed."""
    description = read_description(folder)
    description.require_files(folder)
    onnx, has_torch = description.onnx, is_installed("torch")
    if isinstance(onnx, NoONNX) and not has_torch:
        raise MissingPartError(
            f"model: {folder} has no ONNX files ({onnx.reason}), and torch is missing; {FULL_HINT}"
        )
    networks: AnyNetworks
    if isinstance(onnx, ONNXRecord) and (on_processor(device) or not has_torch):
        networks = open_networks(folder, description, onnx)
    else:
        networks = load_in_torch(folder, description, device=device)
    return VideoScorer(
        networks,
        sampling=description.sampling,
        crop_px=description.crop_px,
        picture=picture_of(description.backbone.architecture),
        warning=description.warning,
        untrained=is_untrained(folder),
        calibration=read_calibration(folder),
        limits=limits_from_environment(description.serving),
    )


def open_networks(
    folder: Path, description: Description, onnx: ONNXRecord
) -> PlainNetworks | ONNXNetworks:
    """The networks of a bundle on a processor, without torch. Raises MissingPartError as
    `open_recorded_encoder` does."""
    precision = description.backbone.precision
    encoder = open_recorded_encoder(description)
    if not is_untrained(folder):
        return ONNXNetworks(folder, onnx, encoder=encoder, precision=precision)
    if encoder is not None:
        return PlainNetworks(lambda: encoder.embedder(None, "cpu"))
    graph = folder / ONNX_FOLDER / "backbone.onnx"
    return PlainNetworks(lambda: CompiledNetwork(graph, precision=precision))


def open_recorded_encoder(description: Description) -> PackagedCopyNetwork | None:
    """The encoder whose files are not in the bundle; None where they are. Raises MissingPartError
    where its package is missing or another one than the model was made with."""
    if not description.backbone.stays_in_package:
        return None
    settings = description.backbone.model_dump(exclude={"source", "sha256"})
    config = BackboneConfig.model_validate(
        {**settings, "weights": {"source": "packaged"}, "crop_px": description.crop_px}
    )
    encoder = open_packaged_copy_network(config)
    if encoder.identity.sha256 != description.backbone.sha256:
        raise MissingPartError(
            f"model: it was made with another file of {config.architecture} (SHA-256 "
            f"{description.backbone.sha256[:12]}) than the package that is installed has; make the "
            "index again with `hapvr index build`, or install that version"
        )
    return encoder


def try_bundle(folder: Path) -> None:
    """Compare a picture with itself by the ONNX files of a bundle from elsewhere, in a process with
    limits: OpenVINO may crash, or never end, on a network of allowed operations. Raises DataError.
    """
    if not (folder / ONNX_FOLDER).is_dir():
        return
    try:
        call_limited(_try, folder, memory_bytes=TRIAL_MEMORY_BYTES, timeout_s=TRIAL_TIMEOUT_S)
    except ValueError as error:
        raise DataError(
            f"model: a trial of {folder} failed: {error}; take one of somebody whom you know"
        ) from error


def _try(folder: Path) -> None:
    scorer = load_bundle(folder)
    shown = scorer.embed(scorer.sampled([encode_jpeg(np.zeros((256, 256, 3), np.uint8))] * 4))
    scorer.similarity(shown, shown)


def load_in_torch(folder: Path, description: Description, *, device: str) -> TorchNetworks:
    """The networks of a bundle in torch; auto: on a GPU where there is one. Raises DataError as
    `load_bundle` does."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from hapvr.model.checkpoint import load_network
    from hapvr.networks.encoder import open_encoder
    from hapvr.networks.packaged import WeightsIdentity
    from hapvr.networks.weights import state_sha256
    from hapvr.networks.whitening import whitening_from_bytes
    from hapvr.scorer.torch_networks import TorchNetworks

    packaged = open_recorded_encoder(description)
    if packaged is not None:
        return TorchNetworks(
            encoder=packaged,
            whitening=whitening_from_bytes((folder / WHITENING_FILE).read_bytes()),
            network=load_network(folder / NETWORK_FOLDER)[0],
            device=device,
        )

    settings = description.backbone.model_dump()
    identity = WeightsIdentity(
        settings["architecture"], settings.pop("source"), settings.pop("sha256")
    )
    settings |= {"weights": {"source": "random"}, "crop_px": description.crop_px}
    try:
        backbone: Any = open_encoder(BackboneConfig.model_validate(settings), device)
        backbone.network.load_state_dict(load_file(folder / BACKBONE_FILE))
        whitening = whitening_from_bytes((folder / WHITENING_FILE).read_bytes())
    except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        said = first_line(error)
        raise DamagedError(
            f"model: backbone or whitening of {folder} is damaged ({said}); {HINT}"
        ) from error
    for part, digest, wanted in (
        ("backbone", state_sha256(backbone.network.state_dict()), identity.sha256),
        ("whitening", whitening.sha256, description.whitening),
    ):
        if digest != wanted:
            raise DataError(
                f"model: the {part} of {folder} has SHA-256 {digest}, {SCORER_FILE} says "
                f"{wanted}; {HINT}"
            )
    return TorchNetworks(
        encoder=replace(
            backbone,
            identity=identity,
            settings=description.backbone.model_dump(exclude_defaults=True),
        ),
        whitening=whitening,
        network=load_network(folder / NETWORK_FOLDER)[0],
        device=device,
    )


def load_similarity_model(place: Path) -> tuple[VideoNetwork, Description | None]:
    """The network of a bundle, of a folder that `save_network` or `hapvr models import` wrote, or
    of a published .pth; and the description of a bundle: models that came from outside do not say
    which features they go with.

    Raises DataError saying which of these were looked for."""
    from hapvr.model.checkpoint import load_network
    from hapvr.model.published import import_released

    if place.is_file():
        return import_released(place)[0], None
    if (place / DESCRIPTION_FILE).is_file():
        return load_network(place)[0], None
    if (place / SCORER_FILE).exists():
        description = read_description(place)
        description.require_files(place)
        return load_network(place / NETWORK_FOLDER)[0], description
    raise DataError(
        f"model: {place} is not a model; wanted a bundle (with {SCORER_FILE}), a network "
        f"folder (with {DESCRIPTION_FILE}), a "
        "published .pth, or models:/NAME@ALIAS"
    )
