"""The ranking losses by the name that a configuration gives them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from torch import Tensor

from hapvr.errors import ConfigError
from hapvr.losses.average_precision import blackbox_ap, fast_ap, quantized_ap, smooth_ap
from hapvr.losses.metric_learning import circle, contrastive, mean_absolute_error, mean_squared_error, triplet
from hapvr.losses.quadlinear import quadlinear_ap
from hapvr.losses.settings import Option

RankingLoss = Callable[..., Tensor]
"""Called as loss(similarity [..., N] in [0, 1], labels [..., N] ternary, **options); returns []."""

RANKING_LOSSES: Mapping[str, RankingLoss] = {
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


def ranking_loss(name: str, options: Mapping[str, Option]) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of that name with its options set. Raises ConfigError for a name or an option it does not know."""
    if name not in RANKING_LOSSES:
        raise ConfigError(f"ranking loss: got {name!r}, wanted one of {', '.join(sorted(RANKING_LOSSES))}")
    function = RANKING_LOSSES[name]
    allowed = loss_options(name)
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise ConfigError(
            f"{name}: unknown option {', '.join(unknown)}; allowed are {', '.join(sorted(allowed)) or 'none'}"
        )

    def call(similarity: Tensor, labels: Tensor) -> Tensor:
        return function(similarity, labels, **options)

    return call


def loss_options(name: str) -> dict[str, object]:
    """The options of a registered loss and their defaults."""
    parameters = inspect.signature(RANKING_LOSSES[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
