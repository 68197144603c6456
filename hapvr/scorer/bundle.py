"""Write a bundle, and load its scorer or its similarity network: the model's networks in one folder; no pickle, no hub, no data
root."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hapvr import __version__
from hapvr.errors import FULL_HINT, DataError, MissingPartError, is_installed, on_processor
from hapvr.model.description import DESCRIPTION_FILE
from hapvr.scorer.access import limits_from_environment
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.description import (
    BACKBONE_FILE,
    FORMAT_VERSION,
    NETWORK_FOLDER,
    ONNX_FOLDER,
    SCORER_FILE,
    WHITENING_FILE,
    Description,
    NoONNX,
    ONNXRecord,
    random_weights_warning,
    read_calibration,
    read_description,
    write_calibration,
    write_description,
)
from hapvr.scorer.onnx_networks import ONNXNetworks
from hapvr.scorer.scorer import Networks, VideoScorer
from hapvr.settings import ServingConfig
from hapvr.video.settings import SamplingConfig

if TYPE_CHECKING:
    from hapvr.model.family import VideoNetwork
    from hapvr.networks.backbone import Backbone
    from hapvr.networks.packaged import PackagedBackbone
    from hapvr.networks.whitening import Whitening


@dataclass(frozen=True, kw_only=True, eq=False)
class BundleParts:
    """What a bundle is assembled from.

    warning: a sentence that goes with every answer of the model. onnx: what `write_onnx` returned, or
    `{"reason": ...}` where there is none. onnx_folder: where it wrote; moved into the bundle.
    """

    network_folder: Path
    backbone: Backbone | PackagedBackbone
    whitening: Whitening
    sampling: SamplingConfig
    serving: ServingConfig = field(default_factory=ServingConfig)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    calibration: Calibration | None = None
    warning: str = ""
    onnx: Mapping[str, Any] | None = None
    onnx_folder: Path | None = None


def write_bundle(folder: Path, parts: BundleParts) -> Path:
    """Assemble a bundle; an older one in `folder` is replaced. Returns `folder`."""
    backbone = parts.backbone
    from safetensors.numpy import save_file  # which scoring does without

    from hapvr.networks.whitening import whitening_to_bytes

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if parts.onnx_folder is not None:
        shutil.move(parts.onnx_folder / ONNX_FOLDER, folder / ONNX_FOLDER)
    shutil.copytree(parts.network_folder, folder / NETWORK_FOLDER)
    save_file(backbone.state(), folder / BACKBONE_FILE)
    (folder / WHITENING_FILE).write_bytes(whitening_to_bytes(parts.whitening))
    if parts.calibration is not None:
        write_calibration(folder, parts.calibration)
    description = {
        "format_version": FORMAT_VERSION,
        "hapvr_version": __version__,
        "serving": parts.serving.model_dump(mode="json"),
        "sampling": parts.sampling.model_dump(mode="json"),
        "backbone": backbone.settings,
        "crop_px": backbone.crop_px,
        "whitening": parts.whitening.sha256,
        "provenance": dict(parts.provenance),
        "warning": parts.warning or random_weights_warning([backbone.identity.source]),
        "onnx": dict(parts.onnx or {"reason": "it was not asked for"}),
    }
    write_description(folder, description)  # last: without it the folder is not a bundle
    return folder


def load_bundle(folder: Path, *, device: str = "cpu") -> VideoScorer:
    """The scorer of a bundle, with its limits as the environment changes them.

    device: auto: a GPU where there is one. A GPU runs the networks in torch, a processor runs the bundle's ONNX files, and
    torch only for a bundle without any. Raises DataError naming what is missing or damaged, ConfigError for a wrong limit,
    and MissingPartError where the bundle needs torch and torch is not installed.
    """
    description = read_description(folder)
    description.require_files(folder)
    return VideoScorer(
        _networks(folder, description, device=device),
        description,
        calibration=read_calibration(folder),
        limits=limits_from_environment(description.serving),
    )


def _networks(folder: Path, description: Description, *, device: str) -> Networks:
    onnx, has_torch = description.onnx, is_installed("torch")
    if isinstance(onnx, ONNXRecord) and (on_processor(device) or not has_torch):
        return ONNXNetworks(folder, onnx, precision=description.backbone.precision)
    if isinstance(onnx, NoONNX) and not has_torch:
        raise MissingPartError(f"model: {folder} has no ONNX files ({onnx.reason}), and torch is missing; {FULL_HINT}")
    from hapvr.scorer.torch_bundle import load_networks

    return load_networks(folder, description, device=device)


@dataclass(frozen=True, kw_only=True, eq=False)
class SimilarityModel:
    """place: of the model. description: None where it is no bundle."""

    place: Path
    network: VideoNetwork
    description: Description | None = None

    def require_features(self, settings: Mapping[str, Any]) -> None:
        """Raise DataError as `Description.require_features` does; models that came from outside do not say, and pass."""
        if self.description is not None:
            self.description.require_features(self.place, settings)


def load_similarity_model(place: Path) -> SimilarityModel:
    """The network of a bundle, of a folder that `save_network` or `hapvr models import` wrote, or of a published .pth.

    Raises DataError saying which of these were looked for.
    """
    from hapvr.model.checkpoint import load_network
    from hapvr.model.published import import_released

    if place.is_file():
        return SimilarityModel(place=place, network=import_released(place)[0])
    if (place / DESCRIPTION_FILE).is_file():
        return SimilarityModel(place=place, network=load_network(place)[0])
    if not (place / SCORER_FILE).exists():
        raise DataError(
            f"model: {place} is not a model; wanted a bundle (with {SCORER_FILE}), a network folder (with "
            f"{DESCRIPTION_FILE}), a published .pth, or models:/NAME@ALIAS"
        )
    description = read_description(place)
    description.require_files(place)
    return SimilarityModel(place=place, network=load_network(place / NETWORK_FOLDER)[0], description=description)
