"""Learning rate: linear warm-up, then cosine decay to a floor (HAP-VR section 4; S2VS 3.4)."""

from __future__ import annotations

from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from hapvr.config import OptimizerConfig
from hapvr.model.network import SimilarityNetwork


def build_optimizer(network: SimilarityNetwork, config: OptimizerConfig) -> AdamW:
    """AdamW over all trained parameters."""
    return AdamW(network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)


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
