"""Logistic regression with weights that are not negative, so that more evidence never says less."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MAX_STEPS = 100
FLAT = 1e-12
"""Standard deviation below which an input says nothing."""


def fit_logistic(
    inputs: Floats, target: Floats, *, penalty: float = 1e-9, towards: Floats | None = None
) -> tuple[Floats, float]:
    """Weights [F] >= 0 and intercept by Newton's method with an active set, for inputs [N, F] and targets [N] in [0, 1].

    penalty: of the squared distance of the weights (L2) of standardised inputs from those of `towards`, default is 0, against the
    sum of the log losses; the intercept has none.
    """
    center, scale = inputs.mean(axis=0), inputs.std(axis=0)
    used = scale > FLAT
    scale = np.where(used, scale, 1.0)
    rows = np.column_stack([(inputs - center) / scale * used, np.ones(len(inputs))])
    ridge = np.append(np.full(len(center), penalty), 0.0)
    least = np.append(np.zeros(len(center)), -np.inf)
    home = np.append(np.zeros(len(center)) if towards is None else towards * scale * used, 0.0)
    weights = np.append(home[:-1], logit(float(target.mean())))

    def loss_of(tried: Floats) -> float:
        return log_loss(rows @ tried, target) + float(ridge @ (tried - home) ** 2) / 2

    loss = loss_of(weights)
    for _ in range(MAX_STEPS):
        predicted = sigmoid(rows @ weights)
        gradient = rows.T @ (predicted - target) + ridge * (weights - home)
        free = (weights > least) | (gradient < 0)
        curvature = (rows * (predicted * (1 - predicted))[:, None]).T @ rows + np.diag(ridge + 1e-9)
        step, rate = np.zeros_like(weights), 1.0
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
        while rate > 1e-8 and loss_of(np.maximum(weights - rate * step, least)) > loss:
            rate /= 2
        weights = np.maximum(weights - rate * step, least)
        before, loss = loss, loss_of(weights)
        if before - loss <= 1e-12 * max(1.0, before):
            break
    slopes = weights[:-1] * used / scale
    return slopes, float(weights[-1] - slopes @ center)


def log_loss(logits: Floats, target: Floats) -> float:
    """The sum of the log losses of predictions with these log-odds."""
    return float(np.sum(np.logaddexp(0, logits) - target * logits))


def sigmoid(logits: Floats) -> Floats:
    """Probabilities of log-odds."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits)), np.float64)


def logit(rate: float) -> float:
    """Log-odds of a probability in (0, 1)."""
    return math.log(rate / (1 - rate))
