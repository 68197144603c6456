"""What every loss asks of its inputs: similarities and ternary labels of the same shape, and rows worth ranking."""

from __future__ import annotations

import torch
from torch import Tensor

from hapvr.errors import ArgumentError


def check_similarities(similarity: Tensor, labels: Tensor, *, square: bool = False) -> Tensor:
    """The similarities in float32 or wider, after checks; half precision would overflow in sums of exponentials.

    similarity: [..., N], finite; labels: same shape, ternary (1 positive, -1 negative, 0 ignored). square: both [N, N].
    Raises ArgumentError that names the argument.
    """
    if similarity.shape != labels.shape:
        raise ArgumentError(
            f"labels: got shape {tuple(labels.shape)}, wanted {tuple(similarity.shape)}, the shape of similarity"
        )
    if square and (similarity.ndim != 2 or similarity.shape[0] != similarity.shape[1]):
        raise ArgumentError(f"similarity: got shape {tuple(similarity.shape)}, wanted a square matrix [clips, clips]")
    if not bool(torch.isfinite(similarity).all()):
        raise ArgumentError(
            f"similarity: {int((~torch.isfinite(similarity)).sum())} of {similarity.numel()} values in "
            f"{similarity.dtype} are NaN or infinite; wanted finite values: compare in float32 if half "
            "precision overflowed"
        )
    if labels.dtype == torch.bool or bool(((labels != 1) & (labels != 0) & (labels != -1)).any()):
        raise ArgumentError(
            f"labels: wanted 1 (positive), -1 (negative) and 0 (ignored) only, got {labels.dtype} with "
            f"{torch.unique(labels)[:5].tolist()}"
        )
    return similarity.to(torch.promote_types(similarity.dtype, torch.float32))


def check_positive(name: str, value: float) -> None:
    """Raise ArgumentError unless the value is above 0."""
    if not value > 0:
        raise ArgumentError(f"{name}: got {value}, wanted a number above 0")


def without_self(labels: Tensor) -> Tensor:
    """The labels with the diagonal, each clip against itself, ignored. labels: [N, N] ternary."""
    if labels.ndim != 2 or labels.shape[0] != labels.shape[1]:
        raise ArgumentError(f"labels: got shape {tuple(labels.shape)}, wanted a square matrix [clips, clips]")
    return labels * (1 - torch.eye(len(labels), dtype=labels.dtype, device=labels.device))


def count_rows_without_positives(labels: Tensor) -> int:
    """How many queries have no positive and are therefore left out of a mean. labels: [..., N] ternary."""
    return int((~(labels > 0).any(-1)).sum())


def mean_where(values: Tensor, valid: Tensor) -> Tensor:
    """Mean over the valid entries, [..] -> []; where there are none 0, with a gradient of 0."""
    return values.masked_fill(~valid, 0).sum() / valid.sum().clamp(min=1).to(values.dtype)
