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

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hapvr.errors import (
    FULL_HINT,
    DamagedError,
    DataError,
    MissingPartError,
    is_installed,
    on_processor,
)
from hapvr.files import read_json_as
from hapvr.model.checkpoint import DESCRIPTION_FILE, read_description as read_network
from hapvr.model.settings import NetworkSettings
from hapvr.networks.encoder import FrameEncoder, open_encoder
from hapvr.networks.openvino_runtime import CompiledNetwork
from hapvr.networks.settings import BackboneConfig, picture_of
from hapvr.scorer.access import limits_from_environment
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.description import (
    BACKBONE_FILE,
    CALIBRATION_FILE,
    EVIDENCE_FILE,
    HINT,
    NETWORK_FOLDER,
    SCORER_FILE,
    WHITENING_FILE,
    Description,
    NoONNX,
    read_description,
)
from hapvr.scorer.evidence import EvidenceModel
from hapvr.scorer.onnx_networks import ONNX_FOLDER, ONNXNetworks, ONNXRecord
from hapvr.scorer.plain_networks import PlainNetworks
from hapvr.scorer.scorer import VideoScorer
from hapvr.scorer.videos import PictureSettings
from hapvr.settings import first_line

if TYPE_CHECKING:
    from hapvr.model.family import VideoNetwork
    from hapvr.scorer.scorer import AnyNetworks
    from hapvr.scorer.torch_networks import TorchNetworks


def read_calibration(folder: Path) -> Calibration | None:
    """The calibration of a bundle, None if it has none. Raises DamagedError for one that cannot be
    used."""
    path = folder / CALIBRATION_FILE
    return read_json_as(path, Calibration, hint=HINT) if path.exists() else None


def read_evidence(folder: Path) -> EvidenceModel | None:
    """How a bundle weighs the evidence of a search; None if it has no weights. Raises DamagedError
    for a file that cannot be used."""
    path = folder / EVIDENCE_FILE
    return read_json_as(path, EvidenceModel, hint=HINT) if path.exists() else None


def is_untrained(folder: Path) -> bool:
    """Whether the network of a bundle compares features as the frozen backbone gives them."""
    settings = read_network(folder / NETWORK_FOLDER).settings
    if not isinstance(settings, NetworkSettings):
        return False
    return not (settings.attention or settings.comparator or settings.binary_bits)


def load_bundle(folder: Path, *, device: str = "cpu") -> VideoScorer:
    """The scorer of a bundle, with its limits, which the environment may change. On a GPU torch
    runs the networks; on a CPU the bundle's ONNX files are run, and torch only for a bundle without
    any.

    device: auto: a GPU where there is one.

    Raises:
        DataError: naming what is missing or damaged.
        ConfigError: a wrong limit.
        MissingPartError: the bundle needs torch, and torch is not installed."""
    return load_described(folder, read_description(folder), device=device)


def load_described(folder: Path, description: Description, *, device: str) -> VideoScorer:
    """As `load_bundle`, of a bundle whose scorer.json was read."""
    description.require_files(folder)
    onnx = description.onnx
    has_torch = is_installed("torch")
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
        pictures=PictureSettings(
            sampling=description.sampling,
            crop_px=description.crop_px,
            picture=picture_of(description.backbone.architecture),
        ),
        warning=description.warning,
        untrained=is_untrained(folder),
        calibration=read_calibration(folder),
        limits=limits_from_environment(description.serving),
    )


def open_networks(
    folder: Path, description: Description, onnx: ONNXRecord, *, sees_frames: bool = True
) -> PlainNetworks | ONNXNetworks:
    """The networks of a bundle on a processor, without torch. sees_frames: False where features are
    there already, so that the network of frames may be missing. Raises MissingPartError as
    `open_recorded_encoder` does."""
    precision = description.backbone.precision
    encoder = open_recorded_encoder(description) if sees_frames else None
    if not is_untrained(folder):
        return ONNXNetworks(folder, onnx, encoder=encoder, precision=precision)
    if encoder is not None:
        return PlainNetworks(lambda: encoder.embedder(None, "cpu"))
    graph = folder / ONNX_FOLDER / "backbone.onnx"
    return PlainNetworks(lambda: CompiledNetwork(graph, precision=precision))


def open_recorded_encoder(description: Description) -> FrameEncoder | None:
    """The encoder whose files are not in the bundle; None where they are. Raises MissingPartError
    where its package is missing or another one than the model was made with."""
    if not description.backbone.stays_in_package:
        return None
    settings = description.backbone.model_dump(exclude={"source", "sha256"})
    config = BackboneConfig.model_validate(
        {**settings, "weights": {"source": "packaged"}, "crop_px": description.crop_px}
    )
    encoder = open_encoder(config, "cpu")
    if encoder.identity.sha256 != description.backbone.sha256:
        raise MissingPartError(
            f"model: it was made with another file of {config.architecture} (SHA-256 "
            f"{description.backbone.sha256[:12]}) than the installed package has; rebuild the "
            "index with `hapvr index build`, or install that version"
        )

    return encoder


def load_in_torch(folder: Path, description: Description, *, device: str) -> TorchNetworks:
    """The networks of a bundle in torch; auto: on a GPU where there is one. Raises DataError as
    `load_bundle` does."""
    from safetensors import SafetensorError

    from hapvr.model.checkpoint import load_network
    from hapvr.networks.whitening import whitening_from_bytes
    from hapvr.scorer.torch_networks import TorchNetworks

    encoder = open_recorded_encoder(description)
    if encoder is None:
        encoder = _load_backbone(folder, description, device=device)
    try:
        whitening = whitening_from_bytes((folder / WHITENING_FILE).read_bytes())
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise _damaged_networks(folder, error) from error

    _require_digest(folder, "whitening", whitening.sha256, description.whitening)
    return TorchNetworks(
        encoder=encoder,
        whitening=whitening,
        network=load_network(folder / NETWORK_FOLDER)[0],
        device=device,
    )


def _load_backbone(folder: Path, description: Description, *, device: str) -> FrameEncoder:
    """The encoder whose weights are in the bundle."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from hapvr.networks.packaged import WeightsIdentity
    from hapvr.networks.weights import state_sha256

    settings = description.backbone.model_dump(exclude={"source", "sha256"})
    settings |= {"weights": {"source": "random"}, "crop_px": description.crop_px}
    try:
        backbone: Any = open_encoder(BackboneConfig.model_validate(settings), device)
        backbone.network.load_state_dict(load_file(folder / BACKBONE_FILE))
    except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        raise _damaged_networks(folder, error) from error

    record = description.backbone
    _require_digest(folder, "backbone", state_sha256(backbone.network.state_dict()), record.sha256)
    encoder: FrameEncoder = replace(
        backbone,
        identity=WeightsIdentity(record.architecture, record.source, record.sha256),
        settings=record.model_dump(exclude_defaults=True),
    )
    return encoder


def _damaged_networks(folder: Path, error: Exception) -> DamagedError:
    return DamagedError(
        f"model: backbone or whitening of {folder} is damaged ({first_line(error)}); {HINT}"
    )


def _require_digest(folder: Path, part: str, digest: str, recorded: str) -> None:
    """Raise DataError where a part of a bundle is not the recorded one."""
    if digest != recorded:
        raise DataError(
            f"model: the {part} of {folder} has SHA-256 {digest}, {SCORER_FILE} says "
            f"{recorded}; {HINT}"
        )


def load_similarity_model(place: Path) -> tuple[VideoNetwork, Description | None]:
    """The network of a bundle, of a folder that `save_network` or `hapvr models import` wrote, or
    of a published .pth; and the bundle's description, None for the others: models from outside do
    not say with which features they go.

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
        f"model: {place} is not a model; expected a bundle (with {SCORER_FILE}), a network "
        f"folder (with {DESCRIPTION_FILE}), a published .pth, or models:/NAME@ALIAS"
    )
