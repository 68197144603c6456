"""The families of models: what a configuration or a stored network says becomes a network."""

from __future__ import annotations

import torch

from hapvr.model.family import VideoNetwork
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import AnyNetworkSettings, NetworkSettings
from hapvr.model.tca.network import ContextNetwork
from hapvr.model.tca.settings import TcaSettings
from hapvr.model.vvs.network import VvsNetwork


def build_family(
    settings: AnyNetworkSettings, *, dims: int, extras_dims: int = 0, generator: torch.Generator | None = None
) -> VideoNetwork:
    """A new network of the family that the settings are of.

    dims: D, values per region; extras_dims: C of `FrameExtras.pooled`, 0 where features have none. generator: draws the weights and
    leaves torch's global generator alone. Raises ArgumentError where the settings do not fit the dims.
    """
    if isinstance(settings, NetworkSettings):
        return SimilarityNetwork(settings, dims=dims, generator=generator)
    if isinstance(settings, TcaSettings):
        return ContextNetwork(settings, dims=dims, generator=generator)
    return VvsNetwork(settings, dims=dims, extras_dims=extras_dims, generator=generator)
