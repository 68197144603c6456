"""The bundle: sampling, backbone weights, whitening and network in one folder; no pickle, no hub, no data root.

scorer.json               format, sampling, backbone identity and precision, crop, limits, where it came from; written last
calibration.json          similarity to probability; not there where the model has none
model_card.md             data, settings, metrics and limits, for people; may be absent
backbone.safetensors      the frozen weights, so that neither hub nor cache is needed where it is loaded; absent where the
                          backbone is a TorchScript file, which is code: whoever loads the bundle names it by
                          HAPVR_BACKBONE_FILE, and its digest must be the recorded one
whitening.safetensors
network/                  network.safetensors, network.json
onnx/                     the same networks as ONNX files, see `hapvr.scorer.onnx_networks`; absent where scorer.json says why
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hapvr import __version__
from hapvr.errors import DataError
from hapvr.features.backbone import Backbone, load_backbone, stored_backbone
from hapvr.features.settings import BackboneConfig
from hapvr.features.weights import WeightsIdentity, state_sha256
from hapvr.features.whitening import Whitening, whitening_from_bytes, whitening_to_bytes
from hapvr.files import write_atomic
from hapvr.model.checkpoint import load_network
from hapvr.scorer.access import limits_from_environment
from hapvr.scorer.calibration import Calibration, calibration_from_json
from hapvr.scorer.onnx_networks import FOLDER as ONNX_FOLDER
from hapvr.scorer.scorer import VideoScorer
from hapvr.scorer.settings import ServingConfig
from hapvr.video.settings import SamplingConfig

Part = TypeVar("Part")

SCORER_FILE = "scorer.json"
BACKBONE_FILE = "backbone.safetensors"
WHITENING_FILE = "whitening.safetensors"
NETWORK_FOLDER = "network"
CALIBRATION_FILE = "calibration.json"
CARD_FILE = "model_card.md"
FORMAT_VERSION = 2
TORCHSCRIPT = "torchscript"
TORCHSCRIPT_VARIABLE = "HAPVR_BACKBONE_FILE"
READ_VERSIONS = (1, 2)
"""Format 1 is format 2 without calibration, model card, limits and the version of this package."""


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


def read_description(folder: Path) -> dict[str, Any]:
    """What scorer.json says. Raises DataError for a folder without one, or of a format that this version does not read."""
    try:
        description = json.loads((folder / SCORER_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"model: {folder} is no model bundle ({error}); wanted a folder with {SCORER_FILE}") from error
    if not isinstance(description, dict):
        raise DataError(f"model: {folder / SCORER_FILE} holds no JSON object; fetch the model again")
    version = description.get("format_version")
    if version not in READ_VERSIONS:
        raise DataError(
            f"model: {folder} has format {version}, made by HAP-VR {description.get('hapvr_version', 'of another version')}; "
            f"this version ({__version__}) reads {', '.join(str(known) for known in READ_VERSIONS)}. Install the version that "
            "made it, register the model again with this one, or load it with mlflow.pyfunc in a process that has not "
            "imported hapvr: a registered model brings its own code"
        )
    return dict(description)


def read_calibration(folder: Path) -> Calibration | None:
    """The calibration of a bundle, None if it has none. Raises DataError for one that cannot be read."""
    path = folder / CALIBRATION_FILE
    if not path.is_file():
        return None
    try:
        return calibration_from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise DataError(f"model: {path} is damaged ({error}); fetch the model again") from error


def load_bundle(folder: Path, *, device: str = "cpu") -> VideoScorer:
    """The scorer of a bundle, with its limits as the environment changes them.

    Raises DataError naming what is missing, damaged or of another format, ConfigError for a wrong limit.
    """
    description = read_description(folder)
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
        sampling = SamplingConfig.model_validate(description["sampling"])
        stored = ServingConfig.model_validate(description.get("serving", {}))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"model: {folder / SCORER_FILE} cannot be used by HAP-VR {__version__} ({error}); it was made by "
            f"{description.get('hapvr_version', 'another version')}: install that, or register the model again"
        ) from error
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
    network, _ = load_network(folder / NETWORK_FOLDER)
    return VideoScorer(
        backbone=dataclasses.replace(backbone, identity=identity, settings=description["backbone"]),
        whitening=_read_part(folder / WHITENING_FILE, lambda path: whitening_from_bytes(path.read_bytes())),
        network=network,
        sampling=sampling,
        batch_frames=config.batch_frames,
        device=device,
        description=description,
        calibration=read_calibration(folder),
        limits=limits_from_environment(stored),
        warning=str(description.get("warning") or "") or random_weights_warning([identity.source]),
    )


def random_weights_warning(sources: Iterable[str]) -> str:
    """The warning of a model whose frozen networks have weights of these sources; empty unless some are random."""
    if "random" not in sources:
        return ""
    return (
        "the frozen networks of this model have random weights: it shows that the chain works, and its similarities and "
        "probabilities say nothing about videos"
    )


def _read_part(path: Path, read: Callable[[Path], Part]) -> Part:
    """read(path). Raises DataError naming a file that is missing or damaged."""
    try:
        return read(path)
    except (OSError, KeyError, SafetensorError) as error:
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
