"""How a frozen network is run: its precision, and torch.compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hapvr.errors import ConfigError
from hapvr.features.settings import ExecutorChoice, FrozenNetworkConfig, PrecisionChoice

DTYPES: dict[PrecisionChoice, torch.dtype] = {
    "auto": torch.float32,  # until an executor has measured
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def executor_of(config: FrozenNetworkConfig) -> ExecutorChoice:
    """A network that is compiled stays in torch."""
    return "torch" if config.compile else config.executor


def run_network(network: nn.Module, pixels: Tensor, precision: PrecisionChoice, *, section: str) -> Any:
    """network(pixels) under autocast of that precision and no other; what is done with the result is not under it.

    pixels: float32. section: of the configuration, for errors. Returns what the network does, partly in half precision.
    Raises ConfigError if the network is to be compiled and cannot be.
    """
    dtype = DTYPES[precision]
    try:
        with torch.autocast(pixels.device.type, dtype=dtype, enabled=dtype is not torch.float32):
            return network(pixels)
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        said = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        raise ConfigError(
            f"{section}.compile: torch.compile failed ({said}). Install a C++ compiler (g++), on a GPU Triton, or set "
            f"{section}.compile to false"
        ) from error
