"""Reference numbers of the published releases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "similarity_and_losses.npz"


@pytest.fixture(scope="session")
def golden() -> dict[str, Tensor]:
    """Arrays of ../shared/golden/similarity_and_losses.npz; its README says where each comes from."""
    if not GOLDEN.exists():
        pytest.skip(f"reference numbers not found: {GOLDEN.name} in ../shared/golden")
    with np.load(GOLDEN) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
