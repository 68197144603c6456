"""The whole training step against its equations, pair by pair."""

import pytest
import torch

from bench.training import run_step


@pytest.mark.parametrize(("num_clips", "num_frames"), [(4, 8), (6, 12)])
def test_step_equals_the_plain_implementation(num_clips: int, num_frames: int) -> None:
    """Loss and gradients of all weights agree with those of every pair and every term computed by
    itself."""
    device = torch.device("cpu")
    loss, gradients = run_step("ours", num_clips, num_frames, device)()
    plain_loss, plain_gradients = run_step("plain", num_clips, num_frames, device)()
    assert loss == pytest.approx(plain_loss, rel=1e-5)
    assert plain_gradients.abs().max() > 0.1
    torch.testing.assert_close(gradients, plain_gradients, rtol=1e-3, atol=1e-4)


def test_bfloat16_trains_in_the_same_direction() -> None:
    """Under `train.precision: bf16-mixed` on a processor: the loss within a thousandth, nearly
    parallel gradients."""
    device = torch.device("cpu")
    loss, gradients = run_step("ours", 8, 12, device)()
    step = run_step("ours", 8, 12, device, precision="bf16-mixed")
    rounded, rounded_gradients = step()
    assert rounded == pytest.approx(loss, rel=1e-3)
    assert rounded != loss
    assert torch.nn.functional.cosine_similarity(rounded_gradients, gradients, dim=0) > 0.999
