"""TCA from its equations, a number at a time in double precision; what tests at other seeds and shapes compare with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def encode(frames: Matrix, weights: Mapping[str, Matrix], *, layers: int, heads: int) -> Matrix:
    """The transformer of the real frames [T, D] of one video."""
    for layer in range(layers):
        own = {
            name.removeprefix(f"transformer_encoder.layers.{layer}."): value
            for name, value in weights.items()
            if name.startswith(f"transformer_encoder.layers.{layer}.")
        }
        attended = _attention(frames, own, heads)
        hidden = _normalize(frames + attended, own["norm1.weight"], own["norm1.bias"])
        inner = np.maximum(hidden @ own["linear1.weight"].T + own["linear1.bias"], 0)
        outer = inner @ own["linear2.weight"].T + own["linear2.bias"]
        frames = _normalize(hidden + outer, own["norm2.weight"], own["norm2.bias"])
    return frames


def _attention(frames: Matrix, own: Mapping[str, Matrix], heads: int) -> Matrix:
    size, dims = frames.shape
    width = dims // heads
    query, key, value = np.split(frames @ own["self_attn.in_proj_weight"].T + own["self_attn.in_proj_bias"], 3, axis=1)
    mixed = np.zeros((size, dims))
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        for i in range(size):
            scores = [float(query[i, part] @ key[j, part]) / math.sqrt(width) for j in range(size)]
            powers = [math.exp(score - max(scores)) for score in scores]
            for j in range(size):
                mixed[i, part] += powers[j] / sum(powers) * value[j, part]
    return mixed @ own["self_attn.out_proj.weight"].T + own["self_attn.out_proj.bias"]


def _normalize(rows: Matrix, gain: Matrix, bias: Matrix) -> Matrix:
    out = np.empty_like(rows)
    for number, row in enumerate(rows):
        mean = float(row.mean())
        deviation = math.sqrt(float(((row - mean) ** 2).mean()) + 1e-5)
        out[number] = (row - mean) / deviation * gain + bias
    return out


def unit(vector: Matrix) -> Matrix:
    return vector / math.sqrt(float(vector @ vector))


def video_vector(encoded: Matrix) -> Matrix:
    return unit(encoded.mean(axis=0))


def chamfer(query: Matrix, reference: Matrix) -> float:
    """Eq. 8: the mean over the query's frames of the best of the reference's."""
    best = [max(float(unit(frame) @ unit(other)) for other in reference) for frame in query]
    return sum(best) / len(best)


def infonce(row: Sequence[float], temperature: float) -> float:
    """Eq. 3 of an anchor's row, its positive first."""
    powers = [math.exp((value - max(row)) / temperature) for value in row]
    return -math.log(powers[0] / sum(powers))


def circle(row: Sequence[float], margin: float, scale: float, positives: Sequence[bool]) -> float:
    """Eq. 4 of an anchor's row, its positive first; positives: which columns are taken for some."""
    logits = [
        scale * max(1 + margin - value, 0) * (value - 1 + margin)
        if positive
        else scale * max(value + margin, 0) * (value - margin)
        for value, positive in zip(row, positives, strict=True)
    ]
    return math.log(sum(math.exp(logit - max(logits)) for logit in logits)) + max(logits) - logits[0]
