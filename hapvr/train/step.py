"""One forward pass: network and objective over a batch, as one module so that DDP sees all of it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from hapvr.config import NetworkConfig, ObjectiveConfig
from hapvr.losses.objective import Objective, ObjectiveSettings, Share
from hapvr.model.network import SimilarityNetwork
from hapvr.seeding import torch_rng
from hapvr.train.gather import Gather


class TrainingStep(nn.Module):
    """Regions [b, T, R, D] and labels to the objective's terms.

    gather: for several processes with one batch. Each compares its own clips with those of all and ranks the video
    similarities of all; the gradients that DDP then averages are those of one process with the whole batch.
    """

    def __init__(self, network: SimilarityNetwork, objective: Objective, *, gather: Gather | None = None) -> None:
        super().__init__()
        self.network = network
        self.objective = objective
        self._gather = gather

    def forward(
        self, regions: Tensor, labels: Tensor, frame_labels: Tensor, pair_index: Tensor, first_row: int = 0
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, int], Tensor]:
        """Total, terms and counts of the objective and video similarities [B, B], as containers that DDP looks into."""
        gather = self._gather
        own = self.network.embed(regions)
        if gather is None:
            share = Share()
            similarities = self.network.compare(own, own)
        else:
            share = Share(first_row, lambda value: gather(value.reshape(1)).sum())
            similarities = self.network.compare(own, gather(own))
            similarities = replace(similarities, video=gather(similarities.video))
        output = self.objective(similarities, labels, frame_labels, pair_index, share)
        return output.total, output.terms, output.counts, similarities.video.detach()


def build_network(config: NetworkConfig, *, dims: int, seed: int) -> SimilarityNetwork:
    """A freshly initialised network; equal seeds give equal weights."""
    return SimilarityNetwork(dims=dims, generator=torch_rng(seed, "network"), **config.model_dump())


def build_objective(config: ObjectiveConfig) -> Objective:
    """Raises ConfigError for a loss or an option that does not exist."""
    return Objective(ObjectiveSettings(**config.model_dump()))
