"""Frame similarities of two embedded videos, in units that do not depend on attention."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hapvr.model.family import VideoNetwork
from hapvr.scorer.segments import relative_similarity


def relative_frame_matrix(network: VideoNetwork, query: Tensor, reference: Tensor) -> NDArray[np.float64]:
    """`relative_similarity` [T, T'] of two embedded videos [T, r, d] and [T', r, d]."""
    matrix = network.frame_similarity(query, reference).cpu().numpy()
    query_self, reference_self = (network.self_similarity(video).double().cpu().numpy() for video in (query, reference))
    return relative_similarity(matrix, query_self, reference_self)
