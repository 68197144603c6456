"""A bundle in torch: written at registration, and loaded where it is trained, searched or scored on a GPU."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hapvr import __version__
from hapvr.errors import DamagedError, DataError
from hapvr.files import write_atomic
from hapvr.model.checkpoint import load_network
from hapvr.model.clips import Limits
from hapvr.model.family import VideoNetwork
from hapvr.networks.backbone import Backbone, load_backbone, stored_backbone
from hapvr.networks.extract import choose_device, region_embedder
from hapvr.networks.settings import BackboneConfig
from hapvr.networks.weights import WeightsIdentity, state_sha256
from hapvr.networks.whitening import Whitening, whitening_from_bytes, whitening_to_bytes
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.description import (
    BACKBONE_FILE,
    FORMAT_VERSION,
    HINT,
    NETWORK_FOLDER,
    ONNX_FOLDER,
    SCORER_FILE,
    TORCHSCRIPT,
    WHITENING_FILE,
    Description,
    random_weights_warning,
    write_calibration,
)
from hapvr.settings import ScoresDtype, ServingConfig, explain
from hapvr.video.settings import SamplingConfig

TORCHSCRIPT_VARIABLE = "HAPVR_BACKBONE_FILE"

Part = TypeVar("Part")


@dataclass(frozen=True, kw_only=True, eq=False)
class BundleParts:
    """What a bundle is assembled from.

    warning: a sentence that goes with every answer of the model. onnx: what `write_onnx` returned, or
    `{"reason": ...}` where there is none. onnx_folder: where it wrote; moved into the bundle.
    """

    network_folder: Path
    backbone: Backbone
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
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if parts.onnx_folder is not None:
        shutil.move(parts.onnx_folder / ONNX_FOLDER, folder / ONNX_FOLDER)
    shutil.copytree(parts.network_folder, folder / NETWORK_FOLDER)
    if backbone.identity.source != TORCHSCRIPT:
        state = {name: tensor.contiguous() for name, tensor in backbone.network.cpu().state_dict().items()}
        save_file(state, folder / BACKBONE_FILE)
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
    with write_atomic(folder / SCORER_FILE) as part:  # last: without it the folder is not a bundle
        part.write_text(json.dumps(description, indent=1, sort_keys=True, default=str), encoding="utf-8")
    return folder


class TorchNetworks:
    """See `hapvr.scorer.scorer.Networks`: the reference, in torch on any device.

    network: of any family. dtype: of embeddings and comparisons, None: that of its weights; the frozen networks have a
    precision of their own.
    """

    def __init__(
        self,
        *,
        backbone: Backbone,
        whitening: Whitening,
        network: VideoNetwork,
        device: torch.device | str,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.network = network.to(device).eval()
        self._device = torch.device(device)
        self._dtype = dtype
        self._embed_frames = region_embedder(backbone, whitening, device, extras=network.needs_extras)
        # one operation at a time, so that torch's number of threads is left alone
        limits = dataclasses.replace(Limits.for_device(self._device), workers=0)
        self._score_packed = self.network.packed_scorer(dtype=dtype, limits=limits)

    @property
    def needs_extras(self) -> bool:
        return self.network.needs_extras

    @torch.inference_mode()
    def regions(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.asarray(self._embed_frames(torch.from_numpy(frames)).numpy(), np.float32)

    @torch.inference_mode()
    def embed(self, regions: NDArray[np.floating]) -> Tensor:
        return self.network.embed(torch.from_numpy(regions).to(self._device), dtype=self._dtype)

    def vectors(self, video: Tensor) -> NDArray[np.float32]:
        return np.asarray(video.float().cpu().numpy())

    @torch.inference_mode()
    def similarities(self, query: Tensor, references: Sequence[Tensor]) -> NDArray[np.float32]:
        scores = self._score_packed(self.network.pack([query]), self.network.pack(references))
        return np.asarray(scores[0].cpu().numpy(), np.float32)

    def frame_similarity(self, query: Tensor, reference: Tensor) -> NDArray[np.float32]:
        return np.asarray(self.network.frame_similarity(query, reference).cpu().numpy())

    def self_similarity(self, video: Tensor) -> NDArray[np.float32]:
        return np.asarray(self.network.self_similarity(video).float().cpu().numpy())


def load_networks(folder: Path, description: Description, *, device: str, dtype: ScoresDtype) -> TorchNetworks:
    """The networks of a bundle on a device; auto: a GPU where there is one. Raises DataError as `load_bundle` does."""
    stated = description.backbone.model_dump()
    identity = WeightsIdentity(stated["architecture"], stated.pop("source"), stated.pop("sha256"))
    weights = _torchscript_weights(folder) if identity.source == TORCHSCRIPT else {"source": "random"}
    try:
        config = BackboneConfig.model_validate(stated | {"weights": weights, "crop_px": description.crop_px})
    except ValidationError as error:
        raise DamagedError(f"{folder / SCORER_FILE} is damaged ({explain(error)}); {HINT}") from error
    if identity.source == TORCHSCRIPT:
        backbone = load_backbone(config)
        found = backbone.identity.sha256
    else:
        state = _read_part(folder / BACKBONE_FILE, load_file)
        found = state_sha256(state)
        backbone = stored_backbone(config, identity, state)
    whitening = _read_part(folder / WHITENING_FILE, lambda path: whitening_from_bytes(path.read_bytes()))
    for part, digest, wanted in (
        ("backbone", found, identity.sha256),
        ("whitening", whitening.sha256, description.whitening),
    ):
        if digest != wanted:
            raise DataError(
                f"model: the {part} of {folder} has SHA-256 {digest}, and {SCORER_FILE} says {wanted}; {HINT}, or correct "
                f"{TORCHSCRIPT_VARIABLE}"
            )
    return TorchNetworks(
        backbone=dataclasses.replace(
            backbone, identity=identity, settings=description.backbone.model_dump(exclude_defaults=True)
        ),
        whitening=whitening,
        network=load_network(folder / NETWORK_FOLDER)[0],
        device=choose_device(device),
        dtype=torch.bfloat16 if dtype == "bfloat16" else None,
    )


def _read_part(path: Path, read: Callable[[Path], Part]) -> Part:
    """read(path). Raises DamagedError naming a file that is missing or damaged."""
    try:
        return read(path)
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise DamagedError(f"model: {path} is missing or damaged ({error}); {HINT}") from error


def _torchscript_weights(folder: Path) -> dict[str, str]:
    """The TorchScript file that this machine's owner names; a bundle never brings one along."""
    path = os.environ.get(TORCHSCRIPT_VARIABLE)
    if not path:
        raise DataError(
            f"model: {folder} was made with a TorchScript backbone, which no bundle contains because it is code; set "
            f"{TORCHSCRIPT_VARIABLE} to your copy of that file"
        )
    return {"source": TORCHSCRIPT, "path": path}
