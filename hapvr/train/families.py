"""A configuration becomes a network with fresh weights, what trains it by its family, the optimizer, its learning rate."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from hapvr.config import OptimizerConfig, TrainConfig
from hapvr.errors import ConfigError
from hapvr.losses.objective import Objective
from hapvr.model.checkpoint import build_family
from hapvr.model.family import VideoNetwork
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import AnyNetworkSettings
from hapvr.model.tca import ContextNetwork
from hapvr.model.vvs import VvsNetwork
from hapvr.seeding import torch_rng
from hapvr.train.batch import Batch, Gather, alone
from hapvr.train.tca import ContrastTraining
from hapvr.train.vvs import SuppressionTraining

WARMUP_START_RATE = 0.01
"""First learning rate as a part of the full one."""


class TrainingModule(nn.Module):
    """How the similarity network trains: regions [b, T, R, D] and labels to the objective's terms.

    gather: for several processes with one batch. Each compares its own clips with those of all and ranks the video
    similarities of all; the gradients that DDP then averages are those of one process with the whole batch.
    """

    def __init__(self, network: SimilarityNetwork, objective: Objective, *, gather: Gather = alone) -> None:
        super().__init__()
        self.network, self.objective, self._gather = network, objective, gather

    def forward(self, batch: Batch, batch_number: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
        """What the objective says of the similarities. Nothing is drawn."""
        gather, first_row, frame_labels = self._gather, batch.first_row, batch.frame_labels
        own = self.network.embed(batch.regions)
        mask = own_mask = None
        if batch.num_frames is not None:
            mask = own_mask = torch.arange(own.shape[1], device=own.device) < batch.num_frames[:, None]
            if len(own) < len(mask):
                own_mask = mask[first_row : first_row + len(own)]
            real = mask[batch.pair_index[:, 0], :, None] & mask[batch.pair_index[:, 1], None, :]
            frame_labels = frame_labels.masked_fill(~real, 0)
        similarities = self.network.compare(own, gather(own), query_mask=own_mask, reference_mask=mask)
        return self.objective(
            replace(similarities, video=gather(similarities.video)),
            batch.labels,
            frame_labels,
            batch.pair_index,
            first_row=first_row,
            add_up=lambda value: gather(value.reshape(1)).sum(),
        )


def build_network(settings: AnyNetworkSettings, *, dims: int, seed: int, extras_dims: int = 0) -> VideoNetwork:
    """A freshly initialised network; equal seeds give equal weights."""
    return build_family(settings, dims=dims, extras_dims=extras_dims, generator=torch_rng(seed, "network"))


def build_training(
    settings: TrainConfig, network: VideoNetwork, *, num_videos: int, batch_videos: int, gather: Gather = alone
) -> nn.Module:
    """What trains a network of its family: called with a batch and its number, it returns the loss [] and its terms [] by name.

    Whatever else changes while training, such as a memory bank or a key encoder, is a buffer or a submodule, so that it is
    in the checkpoint and on the device. Random draws are functions of the seed and the batch's number, never of torch's
    global generator, so that a resumed training ends as an uninterrupted one. DDP waits for a gradient of every weight, and
    the gradients that it averages over processes are those of one process with the whole batch.

    num_videos: of the training; batch_videos: of a batch; gather: of several processes, in which the similarity network alone
    trains. Raises ConfigError for settings that do not fit these.
    """
    if isinstance(network, SimilarityNetwork):
        return TrainingModule(network, Objective(settings.objective), gather=gather)
    if isinstance(network, ContextNetwork):
        return ContrastTraining(network, settings, num_videos=num_videos, batch_videos=batch_videos)
    assert isinstance(network, VvsNetwork)
    return SuppressionTraining(network, settings)


def build_optimizer(network: VideoNetwork, config: OptimizerConfig) -> Optimizer:
    """AdamW over all trained parameters, or Adam with the decay in the gradient. Raises ConfigError where there are none."""
    if not any(weight.requires_grad for weight in network.parameters()):
        raise ConfigError("train.network: these settings leave no weight to train; turn one of its parts on")
    kind = AdamW if config.kind == "adamw" else Adam
    return kind(network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)


def build_scheduler(optimizer: Optimizer, config: OptimizerConfig, *, steps: int) -> LRScheduler:
    """Linear warm-up, then cosine decay to a floor (HAP-VR section 4; S2VS 3.4); one `step()` per training step.

    A run shorter than the warm-up only warms up.
    """
    warmup = min(config.warmup_steps, steps)
    cosine = CosineAnnealingLR(
        optimizer, T_max=max(1, steps - warmup), eta_min=config.learning_rate * config.floor_rate
    )
    if not warmup:
        return cosine
    linear = LinearLR(optimizer, start_factor=WARMUP_START_RATE, total_iters=warmup)
    return SequentialLR(optimizer, [linear, cosine], milestones=[warmup])
