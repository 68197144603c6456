"""How weights change over steps: optimiser, learning rate, and the exponential moving average (EMA) of the weights.

The learning rate has a linear warm-up, then a cosine decay to a floor (HAP-VR section 4; S2VS 3.4).
"""

from __future__ import annotations

import copy

import torch
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from hapvr.config import OptimizerConfig
from hapvr.errors import ConfigError
from hapvr.model.family import VideoNetwork


def build_optimizer(network: VideoNetwork, config: OptimizerConfig) -> Optimizer:
    """AdamW over all trained parameters, or Adam with the decay in the gradient. Raises ConfigError where there are none."""
    if not any(weight.requires_grad for weight in network.parameters()):
        raise ConfigError("train.network: these settings leave no weight to train; turn one of its parts on")
    kind = AdamW if config.kind == "adamw" else Adam
    return kind(network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)


def build_scheduler(optimizer: Optimizer, config: OptimizerConfig, *, steps: int) -> LRScheduler:
    """One `step()` per training step; a run shorter than the warm-up only warms up."""
    warmup = min(config.warmup_steps, steps)
    cosine = CosineAnnealingLR(
        optimizer, T_max=max(1, steps - warmup), eta_min=config.learning_rate * config.floor_rate
    )
    if not warmup:
        return cosine
    start = max(config.warmup_start_rate, 1e-8)  # LinearLR refuses exactly 0
    linear = LinearLR(optimizer, start_factor=start, total_iters=warmup)
    return SequentialLR(optimizer, [linear, cosine], milestones=[warmup])


def copy_for_ema(network: VideoNetwork) -> VideoNetwork:
    """A frozen copy of the network, which the moving average of its weights starts from."""
    return copy.deepcopy(network).eval().requires_grad_(False)


@torch.no_grad()
def update_ema(ema: VideoNetwork, network: VideoNetwork, *, decay: float, step: int) -> None:
    """ema <- d ema + (1 - d) weights, in place, with d = min(decay, (1 + step) / (10 + step)); step counts from 0.

    The smaller d of the first steps lets the average forget the initial weights. Buffers, such as running statistics, are
    taken over as they are.
    """
    current = min(decay, (1 + step) / (10 + step))
    for mean, weight in zip(ema.parameters(), network.parameters(), strict=True):
        mean.lerp_(weight, 1 - current)
    for kept, buffer in zip(ema.buffers(), network.buffers(), strict=True):
        kept.copy_(buffer)
