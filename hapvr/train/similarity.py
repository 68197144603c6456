"""How the similarity network trains: the clips of a batch are compared with each other, and the objective ranks them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hapvr.losses.objective import Objective, RankShard
from hapvr.model.network import SimilarityNetwork
from hapvr.train.family import FamilyTraining, StepOutput
from hapvr.train.gather import Gather


class TrainingModule(FamilyTraining):
    """Regions [b, T, R, D] and labels to the objective's terms.

    gather: for several processes with one batch. Each compares its own clips with those of all and ranks the video
    similarities of all; the gradients that DDP then averages are those of one process with the whole batch.
    """

    network: SimilarityNetwork

    def __init__(self, network: SimilarityNetwork, objective: Objective, *, gather: Gather | None = None) -> None:
        super().__init__(network)
        self.objective = objective
        self._gather = gather

    def forward(
        self,
        regions: Tensor,
        labels: Tensor,
        frame_labels: Tensor,
        pair_index: Tensor,
        first_row: int = 0,
        num_frames: Tensor | None = None,
        shown: Tensor | None = None,
        batch_number: int = 0,
    ) -> StepOutput:
        """Total, terms and counts of the objective and video similarities [B, B]. Nothing is drawn."""
        gather = self._gather
        own = self.network.embed(regions)
        mask = own_mask = None
        if num_frames is not None:
            mask = torch.arange(regions.shape[1], device=regions.device) < num_frames[:, None]
            own_mask = mask if gather is None else mask[first_row : first_row + len(regions)]
            real = mask[pair_index[:, 0], :, None] & mask[pair_index[:, 1], None, :]
            frame_labels = frame_labels.masked_fill(~real, 0)
        if gather is None:
            shard = None
            similarities = self.network.compare(own, own, query_mask=own_mask, reference_mask=mask)
        else:
            shard = RankShard(first_row, lambda value: gather(value.reshape(1)).sum())
            similarities = self.network.compare(own, gather(own), query_mask=own_mask, reference_mask=mask)
            similarities = replace(similarities, video=gather(similarities.video))
        output = self.objective(similarities, labels, frame_labels, pair_index, shard)
        return output.total, output.terms, output.counts, similarities.video.detach()
