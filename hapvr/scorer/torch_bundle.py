"""A bundle in torch: written at registration, and loaded where it is trained, searched or scored on a GPU."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hapvr import __version__
from hapvr.errors import DataError
from hapvr.features.backbone import Backbone, load_backbone, stored_backbone
from hapvr.features.extract import choose_device
from hapvr.features.settings import BackboneConfig
from hapvr.features.weights import WeightsIdentity, state_sha256
from hapvr.features.whitening import Whitening, whitening_from_bytes, whitening_to_bytes
from hapvr.files import write_atomic
from hapvr.model.checkpoint import load_network
from hapvr.scorer.bundle import (
    BACKBONE_FILE,
    CALIBRATION_FILE,
    CARD_FILE,
    FORMAT_VERSION,
    NETWORK_FOLDER,
    SCORER_FILE,
    TORCHSCRIPT,
    TORCHSCRIPT_VARIABLE,
    WHITENING_FILE,
    unusable_description,
)
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.onnx_networks import FOLDER as ONNX_FOLDER
from hapvr.scorer.settings import ScoresDtype, ServingConfig
from hapvr.scorer.torch_networks import TorchNetworks
from hapvr.settings import explain
from hapvr.video.settings import SamplingConfig

Part = TypeVar("Part")


def write_bundle(
    folder: Path,
    *,
    network_folder: Path,
    backbone: Backbone,
    backbone_config: BackboneConfig,
    whitening: Whitening,
    sampling: SamplingConfig,
    provenance: Mapping[str, Any],
    serving: ServingConfig | None = None,
    calibration: Calibration | None = None,
    card: str = "",
    warning: str = "",
    onnx: Mapping[str, Any] | None = None,
    onnx_folder: Path | None = None,
) -> Path:
    """Assemble a bundle; an older one in `folder` is replaced. Returns `folder`.

    card: Markdown. warning: a sentence that goes with every answer of the model. onnx: what `write_onnx` returned, or
    `{"reason": ...}` where there is none. onnx_folder: where it wrote; moved into the bundle.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if onnx_folder is not None:
        shutil.move(onnx_folder / ONNX_FOLDER, folder / ONNX_FOLDER)
    shutil.copytree(network_folder, folder / NETWORK_FOLDER)
    if backbone.identity.source != TORCHSCRIPT:
        state = {name: tensor.contiguous() for name, tensor in backbone.network.cpu().state_dict().items()}
        with write_atomic(folder / BACKBONE_FILE) as part:
            save_file(state, part)
    with write_atomic(folder / WHITENING_FILE) as part:
        part.write_bytes(whitening_to_bytes(whitening))
    if calibration is not None:
        with write_atomic(folder / CALIBRATION_FILE) as part:
            part.write_text(json.dumps(calibration.to_json(), indent=1), encoding="utf-8")
    if card:
        (folder / CARD_FILE).write_text(card, encoding="utf-8")
    description = {
        "format_version": FORMAT_VERSION,
        "hapvr_version": __version__,
        "serving": (serving or ServingConfig()).model_dump(mode="json"),
        "sampling": sampling.model_dump(mode="json"),
        "backbone": backbone.settings,
        "crop_px": backbone_config.crop_px,
        "batch_frames": backbone_config.batch_frames,
        "provenance": dict(provenance),
        "warning": warning,
        "onnx": dict(onnx or {"reason": "it was not asked for"}),
    }
    with write_atomic(folder / SCORER_FILE) as part:
        part.write_text(json.dumps(description, indent=1, sort_keys=True, default=str), encoding="utf-8")
    return folder


def load_networks(folder: Path, description: Mapping[str, Any], *, device: str, dtype: ScoresDtype) -> TorchNetworks:
    """The networks of a bundle on a device; auto: a GPU where there is one. Raises DataError as `load_bundle` does."""
    try:
        stated = dict(description["backbone"])
        identity = WeightsIdentity(stated["architecture"], stated.pop("source"), stated.pop("sha256"))
        config = BackboneConfig.model_validate(
            stated
            | {
                "weights": _torchscript_weights(folder) if identity.source == TORCHSCRIPT else {"source": "random"},
                "crop_px": description["crop_px"],
                "batch_frames": description["batch_frames"],
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        reason = explain(error) if isinstance(error, ValidationError) else error
        raise unusable_description(folder, description, reason) from error
    if identity.source == TORCHSCRIPT:
        backbone = load_backbone(config)
        if backbone.identity != identity:
            raise DataError(
                f"model: {os.environ[TORCHSCRIPT_VARIABLE]} is not the TorchScript file that {folder} was made with; wanted "
                f"is the one of SHA-256 {identity.sha256}"
            )
    else:
        state = _read_part(folder / BACKBONE_FILE, load_file)
        if state_sha256(state) != identity.sha256:
            raise DataError(
                f"model: {folder / BACKBONE_FILE} differs from what {SCORER_FILE} says; fetch the model again"
            )
        backbone = stored_backbone(config, identity, state)
    whitening = _read_part(folder / WHITENING_FILE, lambda path: whitening_from_bytes(path.read_bytes()))
    network = load_network(folder / NETWORK_FOLDER)[0]
    if network.dims != whitening.dims:
        raise DataError(
            f"model: {folder / WHITENING_FILE} gives {whitening.dims} values per region, and the network takes {network.dims}; "
            "fetch the model again"
        )
    return TorchNetworks(
        backbone=dataclasses.replace(backbone, identity=identity, settings=description["backbone"]),
        whitening=whitening,
        network=network,
        device=choose_device(device),
        dtype=torch.bfloat16 if dtype == "bfloat16" else None,
    )


def _read_part(path: Path, read: Callable[[Path], Part]) -> Part:
    """read(path). Raises DataError naming a file that is missing or damaged."""
    try:
        return read(path)
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise DataError(f"model: {path} is missing or damaged ({error}); fetch the model again") from error


def _torchscript_weights(folder: Path) -> dict[str, str]:
    """The TorchScript file that this machine's owner names; a bundle never brings one along."""
    path = os.environ.get(TORCHSCRIPT_VARIABLE)
    if not path:
        raise DataError(
            f"model: {folder} was made with a TorchScript backbone, which no bundle contains because it is code; set "
            f"{TORCHSCRIPT_VARIABLE} to your copy of that file"
        )
    return {"source": TORCHSCRIPT, "path": path}
