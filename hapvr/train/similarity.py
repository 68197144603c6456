"""How the similarity network trains: the objective on the similarities of a batch (HAP-VR 3.2)."""

from dataclasses import replace

from torch import Tensor, nn

from hapvr.losses.objective import Objective
from hapvr.model.network import SimilarityNetwork
from hapvr.train.batch import Batch
from hapvr.train.ranks import gather


class TrainingModule(nn.Module):
    """How the similarity network trains: regions [b, T, R, D] and labels to the objective's terms.
    Each of several processes compares its own clips with those of all and ranks the video
    similarities of all; the gradients that DDP then averages are those of one process with the
    whole batch."""

    def __init__(self, network: SimilarityNetwork, objective: Objective) -> None:
        super().__init__()
        self.network = network
        self.objective = objective

    def forward(self, batch: Batch, batch_number: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective of the similarities. Nothing is drawn at random."""
        first_row = batch.first_row
        own = self.network.embed(batch.regions)
        frame_labels = batch.frame_labels
        if frame_labels is None:  # the objective has no term of frames then
            frame_labels = batch.labels.new_zeros(len(batch.pair_index), 1, 1)
        mask = batch.frame_mask
        own_mask = mask
        if mask is not None:
            if len(own) < len(mask):
                own_mask = mask[first_row : first_row + len(own)]
            real = mask[batch.pair_index[:, 0], :, None] & mask[batch.pair_index[:, 1], None, :]
            frame_labels = frame_labels.masked_fill(~real, 0)

        similarities = self.network.compare(
            own, gather(own), query_mask=own_mask, reference_mask=mask
        )
        return self.objective(
            replace(similarities, video=gather(similarities.video)),
            batch.labels,
            frame_labels,
            batch.pair_index,
            first_row=first_row,
            add_up=lambda value: gather(value.reshape(1)).sum(),
        )
