"""The bundle: sampling, backbone weights, whitening and network in one folder; no pickle, no hub, no data root.

scorer.json               format, sampling, backbone identity, crop, where it came from; written last
backbone.safetensors      the frozen weights, so that neither hub nor cache is needed where it is loaded
whitening.safetensors
network/                  network.safetensors, network.json
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from hapvr.config import BackboneConfig, RandomWeights, SamplingConfig
from hapvr.errors import DataError
from hapvr.features.backbone import Backbone, load_backbone
from hapvr.features.weights import WeightsIdentity, state_sha256
from hapvr.features.whitening import Whitening, whitening_from_bytes, whitening_to_bytes
from hapvr.model.checkpoint import load_network
from hapvr.scorer.scorer import VideoScorer

SCORER_FILE = "scorer.json"
BACKBONE_FILE = "backbone.safetensors"
WHITENING_FILE = "whitening.safetensors"
NETWORK_FOLDER = "network"
FORMAT_VERSION = 1


def write_bundle(
    folder: Path,
    *,
    network_folder: Path,
    backbone: Backbone,
    backbone_config: BackboneConfig,
    whitening: Whitening,
    sampling: SamplingConfig,
    provenance: Mapping[str, Any],
) -> Path:
    """Assemble a bundle; an older one in `folder` is replaced. Returns `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copytree(network_folder, folder / NETWORK_FOLDER)
    state = {name: tensor.contiguous() for name, tensor in backbone.network.cpu().state_dict().items()}
    save_file(state, folder / BACKBONE_FILE)
    (folder / WHITENING_FILE).write_bytes(whitening_to_bytes(whitening))
    description = {
        "format_version": FORMAT_VERSION,
        "sampling": sampling.model_dump(mode="json"),
        "backbone": backbone.identity.as_dict(),
        "crop_px": backbone_config.crop_px,
        "batch_frames": backbone_config.batch_frames,
        "provenance": dict(provenance),
    }
    (folder / SCORER_FILE).write_text(json.dumps(description, indent=1, sort_keys=True, default=str), encoding="utf-8")
    return folder


def load_bundle(folder: Path, *, device: str = "cpu") -> VideoScorer:
    """The scorer of a bundle. Raises DataError naming what is missing, damaged or of another format."""
    try:
        description = json.loads((folder / SCORER_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"model: {folder} is no model bundle ({error}); wanted a folder with {SCORER_FILE}") from error
    if description.get("format_version") != FORMAT_VERSION:
        raise DataError(
            f"model: {folder} has format {description.get('format_version')}, this version reads {FORMAT_VERSION}"
        )
    identity = WeightsIdentity(**description["backbone"])
    config = BackboneConfig.model_validate(
        {
            "architecture": identity.architecture,
            "weights": RandomWeights(source="random"),
            "crop_px": description["crop_px"],
            "batch_frames": description["batch_frames"],
        }
    )
    empty = load_backbone(config)
    state = load_file(folder / BACKBONE_FILE)
    if state_sha256(state) != identity.sha256:
        raise DataError(f"model: {folder / BACKBONE_FILE} differs from what {SCORER_FILE} says; fetch the model again")
    empty.network.load_state_dict(state)
    network, _ = load_network(folder / NETWORK_FOLDER)
    return VideoScorer(
        backbone=Backbone(empty.network, identity, empty.crop_px),
        whitening=whitening_from_bytes((folder / WHITENING_FILE).read_bytes()),
        network=network,
        sampling=SamplingConfig.model_validate(description["sampling"]),
        batch_frames=config.batch_frames,
        device=device,
        description=description,
    )
