"""Pseudo labels: which frames of two clips a frozen teacher finds alike (HAP-VR section 3.4, Eq. 13 and 14)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.errors import ArgumentError
from hapvr.networks.settings import PseudoLabelSettings


def pseudo_labels(query: Tensor, reference: Tensor, settings: PseudoLabelSettings) -> Tensor:
    """Ternary labels of all frame pairs from teacher embeddings (HAP-VR Eq. 13 and 14).

    query: [..., T, D]; reference: [..., T', D]; both finite, and leading dimensions broadcast. For each query frame, the
    part `top_rate` of reference frames with the largest cosine is positive (1), the part `bottom_rate` with the smallest
    is negative (-1), and the rest is ignored (0). Returns int8 [..., T, T'].

    By default a frame is in the top if less than top_rate of its row lies strictly above it. Cosines that are equal to
    within 1e-6 share a label, and a frame that is both top and bottom is ignored. With `exact`, as in the release,
    round(rate * T') frames get each label, at least one unless the rate is 0, and ties are taken in frame order.
    """
    if not (query.isfinite().all() and reference.isfinite().all()):
        raise ArgumentError("pseudo labels: NaN or infinite teacher embeddings; check the teacher's weights")
    # At least float32: half precision makes ties of distinct cosines.
    dtype = torch.promote_types(torch.promote_types(query.dtype, reference.dtype), torch.float32)
    with torch.no_grad():
        cosine = F.normalize(query.to(dtype), dim=-1) @ F.normalize(reference.to(dtype), dim=-1).transpose(-1, -2)
        select = _select_exact if settings.exact else _select_ranked
        top, bottom = select(cosine, settings.top_rate, settings.bottom_rate)
        return top.to(torch.int8) - bottom.to(torch.int8)


def _select_ranked(cosine: Tensor, top_rate: float, bottom_rate: float) -> tuple[Tensor, Tensor]:
    size = cosine.shape[-1]
    # Products of equal frames may differ in the last bits, but must tie.
    values = (cosine * 2**20).round().contiguous()
    ordered = values.sort(-1).values
    above = size - torch.searchsorted(ordered, values, right=True)
    below = torch.searchsorted(ordered, values)
    # The margin keeps a product such as 0.14 * 50 = 7.000000000000001 from admitting an eighth frame.
    return above < top_rate * size - 1e-9, below < bottom_rate * size - 1e-9


def _select_exact(cosine: Tensor, top_rate: float, bottom_rate: float) -> tuple[Tensor, Tensor]:
    size = cosine.shape[-1]
    # If the rates add up to 1, both counts may round up; then the negatives get what is left.
    num_top = _exact_count(top_rate, size)
    num_bottom = min(_exact_count(bottom_rate, size), size - num_top)
    rank = cosine.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return rank < num_top, rank >= size - num_bottom


def _exact_count(rate: float, size: int) -> int:
    return max(round(rate * size), 1) if rate > 0 else 0
