"""TCA's golden numbers, and networks that have their weights."""

import numpy as np
import torch
from torch import Tensor

from hapvr.model.settings import TcaSettings
from hapvr.model.tca import ContextNetwork
from tests.conftest import GOLDEN

Arrays = dict[str, Tensor]


def read() -> Arrays:
    """Arrays of tca_golden.npz; tca_golden.md explains them."""
    with np.load(GOLDEN / "tca_golden.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def network_of(golden: Arrays, **settings: object) -> ContextNetwork:
    """A network without dropout that has the golden weights; changed settings decide how it
    compares."""
    dims, heads, layers, feedforward = golden["config"].tolist()
    sizes = {"heads": heads, "layers": layers, "feedforward": feedforward, "dropout": 0.0}
    network = ContextNetwork(TcaSettings.model_validate(sizes | settings), dims=dims)
    network.load_state_dict(
        {key.removeprefix("weight/"): v for key, v in golden.items() if key.startswith("weight/")}
    )
    return network.eval()


def frames_of(golden: Arrays, name: str) -> tuple[Tensor, Tensor]:
    """Frame vectors [N, T, D] of golden inputs [N, D, T], and the mask of real frames, bool [N,
    T]."""
    frames = golden[name if name.startswith("batch") else f"{name}/x"].transpose(-1, -2)
    lengths = golden[f"{name}_lengths" if name.startswith("batch") else f"{name}/lengths"]
    return frames, torch.arange(frames.shape[-2]) < lengths[..., None]
