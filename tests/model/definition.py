"""The video similarity of HAP-VR, S2VS, DnS and ViSiL in slow loops, from the formulas, on tensors
under published names."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def published_score(
    state: Mapping[str, Array],
    query: Array,
    reference: Array,
    *,
    comparator: str,
    attention: str = "",
    rates: tuple[float, float] = (0.0, 0.0),
    min_frames: int = 4,
    padding: str = "zeros",
    symmetric: bool = False,
) -> float:
    """One number for one pair. query, reference: region features [T, R, D]; comparator, attention:
    prefixes of names."""
    embedded = []
    for video in (query, reference):
        while len(video) < min_frames:
            video = np.concatenate([video, video])
        embedded.append(
            np.stack([[embed(state, region, attention) for region in frame] for frame in video])
        )

    frame = np.array(
        [[chamfer(one @ two.T, rates[0], symmetric) for two in embedded[1]] for one in embedded[0]]
    )
    refined = np.clip(compare(state, frame, comparator, padding), -1, 1)
    return chamfer(refined, rates[1], symmetric)


def embed(state: Mapping[str, Array], region: Array, prefix: str) -> Array:
    """Attention in one of three forms, or a binary code, by the tensors that there are. [D] -> [D]
    or [bits]."""
    if "binarization.W" in state:
        code = np.sign(region / np.linalg.norm(region) @ state["binarization.W"])
        return code / np.sqrt(len(code))

    context = state[f"{prefix}attention.context_vector.weight"][0]
    transform = f"{prefix}attention.transform"
    if f"{transform}.weight" in state:
        hidden = np.tanh(state[f"{transform}.weight"] @ region + state[f"{transform}.bias"])
        return region / (1 + np.exp(-context @ hidden))

    return region * (context @ region / 2 + 0.5)


def chamfer(similarity: Array, rate: float, symmetric: bool = False) -> float:
    """The mean over rows of the mean of the K largest entries; with `symmetric` the mean of both
    directions."""
    count = max(round(rate * similarity.shape[1]), 1)
    forth = float(np.mean([np.mean(sorted(row)[-count:]) for row in similarity]))
    return (forth + chamfer(similarity.T, rate)) / 2 if symmetric else forth


def compare(state: Mapping[str, Array], similarity: Array, prefix: str, padding: str) -> Array:
    """The comparator before hard-tanh. [T, T'] -> [T // 4, T' // 4]."""
    maps = similarity[None]
    for layer in ("conv1", "conv2", "conv3"):
        maps = convolve(
            maps, state[f"{prefix}{layer}.weight"], state[f"{prefix}{layer}.bias"], padding
        )
        maps = np.maximum(maps, 0)
        if layer != "conv3":
            maps = pool(maps)

    weighed: Array = (
        np.tensordot(state[f"{prefix}fconv.weight"][0, :, 0, 0], maps, 1)
        + state[f"{prefix}fconv.bias"][0]
    )
    return weighed


def convolve(maps: Array, weight: Array, bias: Array, padding: str) -> Array:
    """A 3 x 3 convolution that keeps the size. [C, t, t'] -> [K, t, t']."""
    options: dict[str, Any] = {"mode": "edge" if padding == "replicate" else "constant"}
    padded = np.pad(maps, ((0, 0), (1, 1), (1, 1)), **options)
    out = np.empty((len(weight), *maps.shape[1:]))
    for row in range(maps.shape[1]):
        for column in range(maps.shape[2]):
            out[:, row, column] = (
                np.tensordot(weight, padded[:, row : row + 3, column : column + 3], 3) + bias
            )

    return out


def pool(maps: Array) -> Array:
    """The largest of every 2 x 2 entries; an odd last row or column is dropped. [C, t, t'] -> [C, t
    // 2, t' // 2]."""
    rows = maps.shape[1] // 2
    columns = maps.shape[2] // 2
    return (
        maps[:, : 2 * rows, : 2 * columns].reshape(len(maps), rows, 2, columns, 2).max(axis=(2, 4))
    )
