"""One forward pass: network and objective over a batch, as one module so that DDP sees all of it."""

from __future__ import annotations

from torch import Tensor, nn

from hapvr.config import NetworkConfig, ObjectiveConfig
from hapvr.losses.objective import Objective, ObjectiveSettings
from hapvr.model.network import SimilarityNetwork
from hapvr.seeding import torch_rng


class TrainingStep(nn.Module):
    """Regions [B, T, R, D] and labels to the objective's terms."""

    def __init__(self, network: SimilarityNetwork, objective: Objective) -> None:
        super().__init__()
        self.network = network
        self.objective = objective

    def forward(
        self, regions: Tensor, labels: Tensor, frame_labels: Tensor, pair_index: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, int]]:
        """Total, terms and counts of the objective, as the plain containers that Fabric and DDP look into."""
        embeddings = self.network.embed(regions)
        similarities = self.network.compare(embeddings, embeddings)
        output = self.objective(similarities, labels, frame_labels, pair_index)
        return output.total, output.terms, output.counts


def build_network(config: NetworkConfig, *, dims: int, seed: int) -> SimilarityNetwork:
    """A freshly initialised network; equal seeds give equal weights."""
    return SimilarityNetwork(dims=dims, generator=torch_rng(seed, "network"), **config.model_dump())


def build_objective(config: ObjectiveConfig) -> Objective:
    """Raises ConfigError for a loss or an option that does not exist."""
    return Objective(ObjectiveSettings(**config.model_dump()))
