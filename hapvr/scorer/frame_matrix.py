"""Frame similarities of two embedded videos, in units that do not depend on attention."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hapvr.model.network import SimilarityNetwork
from hapvr.model.similarity import chamfer, frame_similarity
from hapvr.scorer.segments import relative_similarity


@torch.inference_mode()
def frame_matrix(network: SimilarityNetwork, query: Tensor, reference: Tensor) -> Tensor:
    """[T, T'] before the comparator, as `network.compare` gives it. query: [T, R, D], reference: [T', R', D], embedded."""
    settings = network.settings
    matrix = frame_similarity(
        query[None],
        reference[None],
        rate=settings.spatial_rate,
        pooling=settings.spatial_pooling,
        symmetric=settings.symmetric_chamfer,
    )
    return matrix[0, 0].float()


@torch.inference_mode()
def relative_frame_matrix(network: SimilarityNetwork, query: Tensor, reference: Tensor) -> NDArray[np.float64]:
    """`relative_similarity` [T, T'] of two embedded videos; arguments as for `frame_matrix`."""
    matrix = frame_matrix(network, query, reference).cpu().numpy()
    return relative_similarity(matrix, _with_themselves(network, query), _with_themselves(network, reference))


def _with_themselves(network: SimilarityNetwork, video: Tensor) -> NDArray[np.float64]:
    """Similarity [T] of each frame with itself."""
    settings = network.settings
    values = chamfer(
        video @ video.transpose(1, 2),
        rate=settings.spatial_rate,
        pooling=settings.spatial_pooling,
        symmetric=settings.symmetric_chamfer,
    )
    return values.double().cpu().numpy()
