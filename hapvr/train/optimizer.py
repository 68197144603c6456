"""The optimizer of a training, and its learning rate."""

from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from hapvr.config import OptimizerConfig
from hapvr.errors import ConfigError
from hapvr.model.family import VideoNetwork


def build_optimizer(network: VideoNetwork, config: OptimizerConfig) -> Optimizer:
    """AdamW over all trained parameters, or Adam with the decay in the gradient. Raises ConfigError
    where there are none."""
    if not any(weight.requires_grad for weight in network.parameters()):
        raise ConfigError(
            "train.network: these settings leave no weight to train; turn one of its parts on"
        )

    kind = AdamW if config.kind == "adamw" else Adam
    return kind(network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)


def build_scheduler(optimizer: Optimizer, config: OptimizerConfig, *, steps: int) -> LRScheduler:
    """Linear warm-up, then cosine decay to a floor (HAP-VR section 4; S2VS 4.3); one `step()` per
    training step. The warm-up starts at a hundredth, as the releases do; the papers give no start.
    A run shorter than the warm-up only warms up."""
    warmup = min(config.warmup_steps, steps)
    decay = CosineAnnealingLR(
        optimizer, T_max=max(1, steps - warmup), eta_min=config.learning_rate * config.floor_rate
    )
    if not warmup:
        return decay
    linear = LinearLR(optimizer, start_factor=0.01, total_iters=warmup)
    return SequentialLR(optimizer, [linear, decay], milestones=[warmup])
