"""Seeds derived from names, so that any single draw can be made again without replaying the ones
before it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from the parts, e.g. (run seed, video id, view index); equal parts give equal
    seeds everywhere."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def numpy_rng(*parts: int | str) -> np.random.Generator:
    """A NumPy generator seeded by `derive_seed(*parts)`."""
    return np.random.default_rng(derive_seed(*parts))


def torch_rng(*parts: int | str) -> torch.Generator:
    """A CPU torch generator seeded by `derive_seed(*parts)`."""
    import torch  # decoding and rendering workers need seeds, not torch

    return torch.Generator().manual_seed(derive_seed(*parts))


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """What torch draws inside, on the CPU or on this device, follows from the seed; its generators
    are then as they were."""
    import torch

    with torch.random.fork_rng([device] if device is not None and device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
