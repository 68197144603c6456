"""A file as ViSiL publishes it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings


def write_visil(path: Path) -> dict[str, Tensor]:
    """Write a network with random weights; returns the weights of its comparator."""
    network = SimilarityNetwork(NetworkSettings(attention_form="linear"), dims=8)
    assert network.comparator is not None
    weights = network.comparator.state_dict()
    published = {f"video_comperator.{key.replace('output', 'fconv')}": value for key, value in weights.items()}
    torch.save({"model": published | {"attention.context_vector.weight": torch.rand(1, 8)}}, path)
    return weights
