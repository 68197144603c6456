"""The ranking losses by the name that a configuration gives them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from hapvr.errors import ConfigError
from hapvr.losses.average_precision import blackbox_ap, fast_ap, quantized_ap, smooth_ap
from hapvr.losses.metric_learning import circle, contrastive, mean_absolute_error, mean_squared_error, triplet
from hapvr.losses.quadlinear import quadlinear_ap
from hapvr.losses.settings import LossName, Option

RankingLoss = Callable[..., Tensor]
"""Called as loss(similarity [..., N] in [0, 1], labels [..., N] ternary, **options); returns []."""

RANKING_LOSSES: Mapping[LossName, RankingLoss] = {
    "mae": mean_absolute_error,
    "mse": mean_squared_error,
    "contrastive": contrastive,
    "triplet": triplet,
    "circle": circle,
    "fast_ap": fast_ap,
    "dir": quantized_ap,
    "blackbox_ap": blackbox_ap,
    "smooth_ap": smooth_ap,
    "quadlinear_ap": quadlinear_ap,
}
"""The rows of HAP-VR Table 2."""


def ranking_loss(name: LossName, options: Mapping[str, Option]) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of that name with its options set. Raises ConfigError for an option that it does not have."""
    allowed = loss_options(name)
    if unknown := sorted(options.keys() - allowed.keys()):
        raise ConfigError(f"{name}: unknown option {', '.join(unknown)}; allowed are {', '.join(allowed) or 'none'}")
    return partial(RANKING_LOSSES[name], **options)


def loss_options(name: LossName) -> dict[str, object]:
    """The options of a registered loss and their defaults."""
    parameters = inspect.signature(RANKING_LOSSES[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
