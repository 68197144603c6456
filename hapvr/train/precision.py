"""Which precision a training runs in: `train.precision: auto` measures it."""

from __future__ import annotations

import time

import torch

from hapvr.config import TrainPrecision

LEAST_GAIN = 2.0
"""How much faster products must be in bfloat16. Half of a step is other work, which bfloat16 hardly makes faster."""

ROWS, DIMS = 1024, 512
"""Of the products that are timed: those of a block of regions, see `hapvr.model.kernels.frame_similarity`."""

ROUNDS = 7


def faster_precision(device: torch.device) -> TrainPrecision:
    """bf16-mixed where products of matrices are LEAST_GAIN times as fast in bfloat16 as in float32, else 32-true."""
    seconds = {dtype: _product_seconds(dtype, device) for dtype in (torch.float32, torch.bfloat16)}
    return "bf16-mixed" if seconds[torch.float32] >= LEAST_GAIN * seconds[torch.bfloat16] else "32-true"


def _product_seconds(dtype: torch.dtype, device: torch.device) -> float:
    """The shortest of ROUNDS products; the first prepares them and does not count."""
    regions = torch.ones(ROWS, DIMS, dtype=dtype, device=device)
    shortest = float("inf")
    for number in range(ROUNDS + 1):
        start = time.perf_counter()
        (regions @ regions.T)[0, 0].item()  # waits for a GPU
        if number:
            shortest = min(shortest, time.perf_counter() - start)
    return shortest
