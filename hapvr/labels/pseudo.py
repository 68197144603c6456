"""Pseudo labels: which frames of two clips a frozen teacher finds alike (HAP-VR section 3.4, Eq. 13 and 14)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.errors import ArgumentError
from hapvr.labels.settings import PseudoLabelSettings


def pseudo_labels(query: Tensor, reference: Tensor, settings: PseudoLabelSettings) -> Tensor:
    """Ternary labels of all frame pairs from teacher embeddings (HAP-VR Eq. 13 and 14).

    query: [..., T, D]; reference: [..., T', D], finite, leading dimensions broadcast. Per query frame the top_rate of
    reference frames with the largest cosine are positive (1), the bottom_rate with the smallest negative (-1), the
    rest ignored (0); returns int8 [..., T, T'].

    By default a frame is in the top when less than top_rate of its row lies strictly above it: cosines equal to within
    1e-6 share a label, and one that is both top and bottom is ignored. exact: round(rate * T') frames each as in the
    release, at least one unless the rate is 0, ties in frame order.
    """
    for name, embeddings in (("query", query), ("reference", reference)):
        if embeddings.ndim < 2 or 0 in embeddings.shape or embeddings.shape[-1] != query.shape[-1]:
            raise ArgumentError(
                f"{name}: got shape {tuple(embeddings.shape)}, wanted [..., frames, {query.shape[-1]}], no axis empty"
            )
        if not bool(torch.isfinite(embeddings).all()):
            raise ArgumentError(f"{name}: NaN or infinite teacher embeddings; make them again in float32")
    # At least float32: half precision makes ties of distinct cosines.
    dtype = torch.promote_types(torch.promote_types(query.dtype, reference.dtype), torch.float32)
    with torch.no_grad():
        cosine = F.normalize(query.to(dtype), dim=-1) @ F.normalize(reference.to(dtype), dim=-1).transpose(-1, -2)
        select = _select_exact if settings.exact else _select_ranked
        top, bottom = select(cosine, settings.top_rate, settings.bottom_rate)
        return top.to(torch.int8) - bottom.to(torch.int8)


def _select_ranked(cosine: Tensor, top_rate: float, bottom_rate: float) -> tuple[Tensor, Tensor]:
    size = cosine.shape[-1]
    # Frames that are alike must tie, though their products may differ in the last bits.
    values = (cosine * 2**20).round().contiguous()
    ordered = values.sort(-1).values
    above = size - torch.searchsorted(ordered, values, right=True)
    below = torch.searchsorted(ordered, values)
    # The margin keeps a product such as 0.14 * 50 = 7.000000000000001 from admitting an eighth frame.
    return above < top_rate * size - 1e-9, below < bottom_rate * size - 1e-9


def _select_exact(cosine: Tensor, top_rate: float, bottom_rate: float) -> tuple[Tensor, Tensor]:
    size = cosine.shape[-1]
    # Both counts may round up when the rates add up to 1; the positives then keep theirs.
    num_top = _exact_count(top_rate, size)
    num_bottom = min(_exact_count(bottom_rate, size), size - num_top)
    rank = cosine.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return rank < num_top, rank >= size - num_bottom


def _exact_count(rate: float, size: int) -> int:
    return max(round(rate * size), 1) if rate > 0 else 0
