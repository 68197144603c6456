"""How the similarity network trains: the clips of a batch are compared with each other, and the objective ranks them."""

from __future__ import annotations

from dataclasses import replace

import torch

from hapvr.losses.objective import Objective, RankShard
from hapvr.model.network import SimilarityNetwork
from hapvr.train.batch import Batch
from hapvr.train.family import FamilyTraining, Gather, StepOutput


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

    def forward(self, batch: Batch, batch_number: int = 0) -> StepOutput:
        """Total, terms and counts of the objective and video similarities [B, B]. Nothing is drawn."""
        gather, first_row, frame_labels = self._gather, batch.first_row, batch.frame_labels
        own = self.network.embed(batch.regions)
        mask = own_mask = None
        if batch.num_frames is not None:
            mask = torch.arange(own.shape[1], device=own.device) < batch.num_frames[:, None]
            own_mask = mask if gather is None else mask[first_row : first_row + len(own)]
            real = mask[batch.pair_index[:, 0], :, None] & mask[batch.pair_index[:, 1], None, :]
            frame_labels = frame_labels.masked_fill(~real, 0)
        every = own if gather is None else gather(own)
        similarities = self.network.compare(own, every, query_mask=own_mask, reference_mask=mask)
        shard = None
        if gather is not None:
            shard = RankShard(first_row, lambda value: gather(value.reshape(1)).sum())
            similarities = replace(similarities, video=gather(similarities.video))
        output = self.objective(similarities, batch.labels, frame_labels, batch.pair_index, shard)
        return output.total, output.terms, output.counts, similarities.video.detach()
