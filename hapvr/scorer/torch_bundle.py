"""A bundle in torch: loaded where it has no ONNX files, or is searched or scored on a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hapvr.errors import DamagedError, DataError
from hapvr.model.checkpoint import load_network
from hapvr.model.family import VideoNetwork
from hapvr.networks.backbone import Backbone, load_backbone
from hapvr.networks.extract import choose_device, region_embedder
from hapvr.networks.packaged import WeightsIdentity
from hapvr.networks.settings import BackboneConfig
from hapvr.networks.weights import state_sha256
from hapvr.networks.whitening import Whitening, whitening_from_bytes
from hapvr.scorer.description import (
    BACKBONE_FILE,
    HINT,
    NETWORK_FOLDER,
    SCORER_FILE,
    WHITENING_FILE,
    Description,
)
from hapvr.scorer.scorer import Comparisons
from hapvr.settings import explain


class TorchNetworks:
    """See `hapvr.scorer.scorer.Networks`: the reference, in torch on any device.

    network: of any family; the frozen networks have a precision of their own.
    """

    def __init__(
        self,
        *,
        backbone: Backbone,
        whitening: Whitening,
        network: VideoNetwork,
        device: torch.device | str,
    ) -> None:
        self.network = network.to(device).eval()
        self._device = torch.device(device)
        self._embed_frames = region_embedder(backbone, whitening, device, extras=network.needs_extras)

    @property
    def needs_extras(self) -> bool:
        return self.network.needs_extras

    @torch.inference_mode()
    def regions(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.asarray(self._embed_frames(frames), np.float32)

    @torch.inference_mode()
    def embed(self, regions: NDArray[np.floating]) -> Tensor:
        return self.network.embed(torch.from_numpy(regions).to(self._device))

    def vectors(self, video: Tensor) -> NDArray[np.float32]:
        return np.asarray(video.float().cpu().numpy())

    @torch.inference_mode()
    def similarities(self, query: Tensor, references: Sequence[Tensor]) -> NDArray[np.float32]:
        return np.asarray(self.network.score_videos([query], references)[0].numpy())

    def comparisons(self, query: Tensor, references: Sequence[Tensor]) -> Comparisons:
        return self.similarities(query, references), [self.frame_similarity(query, one) for one in references]

    def frame_similarity(self, query: Tensor, reference: Tensor) -> NDArray[np.float32]:
        return np.asarray(self.network.frame_similarity(query, reference).cpu().numpy())

    def self_similarity(self, video: Tensor) -> NDArray[np.float32]:
        return np.asarray(self.network.self_similarity(video).float().cpu().numpy())


def load_networks(folder: Path, description: Description, *, device: str) -> TorchNetworks:
    """The networks of a bundle on a device; auto: a GPU where there is one. Raises DataError as `load_bundle` does."""
    stated = description.backbone.model_dump()
    identity = WeightsIdentity(stated["architecture"], stated.pop("source"), stated.pop("sha256"))
    try:
        config = BackboneConfig.model_validate(
            stated | {"weights": {"source": "random"}, "crop_px": description.crop_px}
        )
    except ValidationError as error:
        raise DamagedError(f"{folder / SCORER_FILE} is damaged ({explain(error)}); {HINT}") from error
    try:
        whitening = whitening_from_bytes((folder / WHITENING_FILE).read_bytes())
        backbone = load_backbone(config)
        backbone.network.load_state_dict(load_file(folder / BACKBONE_FILE))
    except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        raise DamagedError(f"model: backbone or whitening of {folder} is damaged ({error}); {HINT}") from error
    for part, digest, wanted in (
        ("backbone", state_sha256(backbone.network.state_dict()), identity.sha256),
        ("whitening", whitening.sha256, description.whitening),
    ):
        if digest != wanted:
            raise DataError(
                f"model: the {part} of {folder} has SHA-256 {digest}, and {SCORER_FILE} says {wanted}; {HINT}"
            )
    return TorchNetworks(
        backbone=dataclasses.replace(
            backbone, identity=identity, settings=description.backbone.model_dump(exclude_defaults=True)
        ),
        whitening=whitening,
        network=load_network(folder / NETWORK_FOLDER)[0],
        device=choose_device(device),
    )
