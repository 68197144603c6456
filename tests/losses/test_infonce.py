"""InfoNCE and the two halves of SSHN against loops, at their clamps, and with rows that lack a kind."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hapvr.errors import ArgumentError
from hapvr.losses.infonce import hard_negative, infonce, self_similarity
from hapvr.losses.rows import without_self
from hapvr.seeding import torch_rng


def batch(name: str, *, size: int = 8) -> tuple[Tensor, Tensor]:
    """Similarities in (0, 1) in float64 and ternary labels, both square."""
    generator = torch_rng("contrastive", name)
    similarity = torch.rand(size, size, generator=generator, dtype=torch.float64)
    labels = torch.randint(-1, 2, (size, size), generator=generator, dtype=torch.int8)
    return similarity, labels


def loop_infonce(similarity: Tensor, labels: Tensor, temperature: float) -> float:
    """S2VS Eq. 1 for each query and positive in turn."""
    losses = []
    for scores, kinds in zip(similarity.tolist(), labels.tolist(), strict=True):
        weights = [math.exp(score / temperature) for score in scores]
        negatives = sum(weight for weight, kind in zip(weights, kinds, strict=True) if kind == -1)
        terms = [
            -math.log(weight / (weight + negatives)) for weight, kind in zip(weights, kinds, strict=True) if kind == 1
        ]
        if terms:
            losses.append(sum(terms) / len(terms))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("temperature", [0.03, 0.5])
def test_infonce_equals_the_loop(temperature: float) -> None:
    """With the self pairs left out."""
    similarity, labels = batch("loop")
    labels = without_self(labels)
    found = infonce(similarity, labels, temperature=temperature).item()
    assert found == pytest.approx(loop_infonce(similarity, labels, temperature))


def test_infonce_without_negatives_is_zero() -> None:
    """A query with nothing to be told from has no loss and no gradient."""
    similarity = torch.rand(2, 3, generator=torch_rng("no negatives"), requires_grad=True)
    loss = infonce(similarity, torch.ones(2, 3, dtype=torch.int8), temperature=0.03)
    loss.backward()
    assert loss.item() == 0
    assert similarity.grad is not None
    assert not similarity.grad.any()


def test_infonce_survives_a_tiny_temperature() -> None:
    """Exponentials far beyond the range of float32 stay inside the logarithm."""
    similarity = torch.tensor([[0.0, 1.0]], requires_grad=True)
    loss = infonce(similarity, torch.tensor([[1, -1]], dtype=torch.int8), temperature=1e-4)
    loss.backward()
    assert loss.item() == pytest.approx(1e4)
    assert torch.isfinite(similarity.grad).all()


def test_sshn_by_hand() -> None:
    """-log of the diagonal, and -log of one minus each row's largest negative; a row without one is left out."""
    similarity = torch.tensor([[0.9, 0.5, 0.2], [0.4, 0.8, 0.7], [0.3, 0.6, 1.0]], dtype=torch.float64)
    labels = torch.tensor([[1, -1, -1], [-1, 1, 1], [0, 1, 1]], dtype=torch.int8)
    expected = -(math.log(0.9) + math.log(0.8) + math.log(1.0)) / 3
    assert self_similarity(similarity, labels).item() == pytest.approx(expected)
    assert hard_negative(similarity, labels).item() == pytest.approx(-(math.log(0.5) + math.log(0.6)) / 2)


def test_sshn_is_clamped() -> None:
    """A lost self match and a perfect negative cost -log(0.001) each, not infinity."""
    similarity = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    labels = torch.tensor([[1, -1], [-1, 1]], dtype=torch.int8)
    assert self_similarity(similarity, labels).item() == pytest.approx(-math.log(1e-3))
    assert hard_negative(similarity, labels).item() == pytest.approx(-math.log(1e-3))


def test_base_losses_pass_the_gradient_check() -> None:
    """The gradients are those of finite differences."""
    similarity, labels = batch("gradient", size=5)
    similarity.clamp_(0.01, 0.99).requires_grad_()
    for loss in (lambda s: infonce(s, labels, temperature=0.3), lambda s: hard_negative(s, labels)):
        assert torch.autograd.gradcheck(loss, similarity)
    assert torch.autograd.gradcheck(lambda s: self_similarity(s, labels), similarity)


def test_base_losses_refuse_bad_settings() -> None:
    """The error names the argument, its value or shape and what is allowed."""
    similarity, labels = batch("settings")
    with pytest.raises(ArgumentError, match="temperature: got 0"):
        infonce(similarity, labels, temperature=0.0)
    with pytest.raises(ArgumentError, match="floor: got 0"):
        hard_negative(similarity, labels, floor=0.0)
