"""A running mean of the weights, which validates better and moves less than the weights of the last step."""

from __future__ import annotations

import copy

import torch

from hapvr.model.network import SimilarityNetwork


def copy_for_average(network: SimilarityNetwork) -> SimilarityNetwork:
    """The network that a running mean starts from; its weights take no gradient."""
    average = copy.deepcopy(network).eval()
    return average.requires_grad_(False)


@torch.no_grad()
def update_average(average: SimilarityNetwork, network: SimilarityNetwork, *, decay: float, step: int) -> None:
    """mean <- d mean + (1 - d) weights, d = min(decay, (1 + step) / (10 + step)); step counts from 0.

    The smaller d of the first steps lets the mean forget the weights that training started from.
    """
    now = min(decay, (1 + step) / (10 + step))
    for mean, value in zip(average.parameters(), network.parameters(), strict=True):
        mean.lerp_(value, 1 - now)
