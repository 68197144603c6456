"""Values and gradients of the losses against reference numbers of the published releases."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from hapvr.losses.objective import (
    hard_negative,
    infonce,
    quadlinear_ap,
    self_similarity,
    without_self,
)

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "qlap_official_selfpositive": lambda s, labels: quadlinear_ap(s, labels, delta=0.05, rho=0.10),
    "infonce_t0.03": lambda s, labels: infonce(s, without_self(labels), temperature=0.03),
    "sshn_hard": hard_negative,
    "sshn_self": self_similarity,
}


def ternary(labels: Tensor) -> Tensor:
    """Labels 1 and 0 of the reference arrays as 1 and -1."""
    return (2 * labels - 1).to(torch.int8)


@pytest.mark.parametrize("name", LOSSES)
def test_video_losses_match_the_release(golden: dict[str, Tensor], name: str) -> None:
    """Value and gradient of each loss on video similarities equal the release's."""
    similarity = golden["S"].clone().requires_grad_()
    loss = LOSSES[name](similarity, ternary(golden["labels"]))
    loss.backward()
    assert_close(loss.detach(), golden[f"loss/{name}"], rtol=1e-4, atol=1e-5)
    assert_close(similarity.grad, golden[f"grad/{name}"], rtol=1e-4, atol=1e-5)


def test_frame_level_quadlinear_ap_matches_the_release(golden: dict[str, Tensor]) -> None:
    """Frame similarities of positive video pairs, self pairs included, ranked by pseudo labels."""
    pairs = golden["labels"].nonzero()
    frame_labels = golden["pseudo_pos"].to(torch.int8) - golden["pseudo_neg"].to(torch.int8)
    similarity = golden["frame_S"].clone().requires_grad_()
    chosen = pairs.unbind(1)
    loss = quadlinear_ap(similarity[chosen], frame_labels[chosen], delta=0.05, rho=5.0)
    loss.backward()
    assert_close(loss.detach(), golden["loss/frame_qlap_official"], rtol=1e-4, atol=1e-5)
    assert_close(similarity.grad, golden["grad/frame_qlap_official"], rtol=1e-4, atol=1e-5)
