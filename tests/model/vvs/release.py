"""The golden numbers of VVS, and networks with their weights."""

import math
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.model.published import LAST_LAYERS, PREFIXES, own_name
from hapvr.model.settings import VvsSettings
from hapvr.model.vvs import VvsNetwork

Golden = dict[str, Tensor]


def read(file: Any) -> Golden:
    with np.load(file, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def network_of(golden: Golden, **changes: Any) -> VvsNetwork:
    """A network of the golden sizes and weights, without dropout, in evaluation mode."""
    _, channels, dims, first, second, width = golden["settings"].tolist()
    saliency = {"width": width, "dropout": 0.0}
    sizes = {"distractor": {"hidden": (first, second), "dropout": 0.0}, "saliency": saliency}
    settings = VvsSettings.model_validate(sizes | changes)
    network = VvsNetwork(settings, dims=dims, extras_dims=channels)
    weights = {own_name(name)[0]: golden[f"weight/{name}"] for name in names(golden)}
    wanted = network.state_dict()
    network.load_state_dict({name: weights.get(name, wanted[name]) for name in wanted})
    return network.eval()


def names(golden: Golden) -> list[str]:
    return [name[7:] for name in golden if name.startswith("weight/") and own_name(name[7:])[0]]


def base(raw: Tensor, split: list[int]) -> Tensor:
    """Base normalisation b of raw regions [T, S, C]."""
    return F.normalize(
        torch.cat([F.normalize(part, dim=-1) for part in raw.split(split, dim=-1)], dim=-1), dim=-1
    )


def pooled(golden: Golden, raw: Tensor) -> Tensor:
    """u [T, C] of raw regions."""
    return F.normalize(base(raw, golden["split"].tolist()).mean(1), dim=-1)


def whitened(golden: Golden, raw: Tensor) -> Tensor:
    """X [T, S, D] of raw regions."""
    centred = base(raw, golden["split"].tolist()) - golden["pca/mean"]
    return F.normalize(centred @ golden["pca/components"] / golden["pca/denominator"], dim=-1)


def draw(name: str, shape: tuple[int, ...]) -> Tensor:
    """The numbers that the file of full sizes was made from."""
    values = np.random.default_rng([11, crc32(name.encode())]).standard_normal(shape)
    return torch.from_numpy(values.astype(np.float32))


def full_weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """The weight of a published name, by the formula of vvs_golden.md."""
    if name.endswith("num_batches_tracked"):
        return torch.zeros((), dtype=torch.long)
    values = draw(name, shape)
    if name.endswith("running_var"):
        return 0.05 + values.abs()
    if len(shape) >= 2:
        values = values * math.sqrt(1.6 / math.prod(shape[1:]))
    else:
        values = 0.1 * values
        if name.endswith("weight") and (".bn" in name or ".norm" in name):
            values = values + 1

    if name.endswith("aconv.weight"):
        values = values * 1024
    if name.endswith("ddm_layer3.weight"):
        values = values * 20
    if name.endswith("ddm_layer3.bias"):
        values = torch.full(shape, -4.0)
    return values


def published_name(own: str) -> str:
    """The inverse of `own_name`."""
    for before, after in LAST_LAYERS.items():
        if own.startswith(after):
            own = before + own.removeprefix(after)
            break

    prefixes = [(prefix, replaced) for prefix, replaced, release in PREFIXES if release == "vvs"]
    for prefix, replaced in sorted(prefixes, key=lambda item: -len(item[1])):
        if own.startswith(replaced):
            return prefix + own.removeprefix(replaced)

    raise KeyError(own)
