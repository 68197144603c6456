"""How weights change over steps: the optimiser, and its learning rate.

The rate has a linear warm-up, then a cosine decay to a floor (HAP-VR section 4; S2VS 3.4).
"""

from __future__ import annotations

from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from hapvr.config import OptimizerConfig
from hapvr.errors import ConfigError
from hapvr.model.family import VideoNetwork

WARMUP_START_RATE = 0.01
"""First learning rate as a part of the full one."""


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
    linear = LinearLR(optimizer, start_factor=WARMUP_START_RATE, total_iters=warmup)
    return SequentialLR(optimizer, [linear, cosine], milestones=[warmup])
