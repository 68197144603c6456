"""Pseudo labels: reference numbers, counts, ties and bad input."""

import pytest
import torch
from hypothesis import given, strategies as st
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional as F

from hapvr.networks.backbone import pseudo_labels
from hapvr.networks.settings import PseudoLabelSettings
from hapvr.seeding import torch_rng


def line(*values: float) -> Tensor:
    """Unit vectors [n, 2] whose cosine with (1, 0) is the given value."""
    cosine = torch.tensor(values)
    return torch.stack([cosine, (1 - cosine.square()).sqrt()], 1)


ONE_FRAME = torch.tensor([[1.0, 0.0]])


def test_pseudo_labels_match_the_release(golden: dict[str, Tensor]) -> None:
    """All pairs of six clips of 28 frames: ten positives and ten negatives a row, the release's."""
    labels = pseudo_labels(golden["dino"][:, None], golden["dino"][None], PseudoLabelSettings())
    assert torch.equal(labels > 0, golden["pseudo_pos"].bool())
    assert torch.equal(labels < 0, golden["pseudo_neg"].bool())


def test_pseudo_labels_give_ties_one_label() -> None:
    """Equal cosines at the threshold are all positive."""
    reference = line(0.9, 0.5, 0.5, 0.5, -0.3)
    settings = PseudoLabelSettings(top_rate=0.4, bottom_rate=0.2)
    assert pseudo_labels(ONE_FRAME, reference, settings).tolist() == [[1, 1, 1, 1, -1]]


def test_pseudo_labels_of_frames_that_differ_in_the_last_bit() -> None:
    """A paused clip is still, whatever rounding does to its products."""
    still = torch.rand(1, 384, generator=torch_rng("still")).repeat(28, 1)
    still[::2] += torch.finfo(torch.float32).eps / 4
    assert not pseudo_labels(still, still, PseudoLabelSettings()).any()


@given(seed=st.integers(0, 9999), top_rate=st.floats(0, 1), part=st.floats(0, 1))
def test_pseudo_labels_equal_the_loop(seed: int, top_rate: float, part: float) -> None:
    """Rank every frame of every row by counting, for any rates."""
    bottom_rate = (1 - top_rate) * part
    teacher = torch.randn(2, 7, 5, generator=torch_rng("loop", seed))
    cosine = (F.normalize(teacher[0], dim=-1) @ F.normalize(teacher[1], dim=-1).T).tolist()
    limits = [rate * 7 - 1e-9 for rate in (top_rate, bottom_rate)]
    expected = [
        [
            (sum(other > value for other in row) < limits[0])
            - (sum(other < value for other in row) < limits[1])
            for value in row
        ]
        for row in cosine
    ]
    labels = pseudo_labels(
        teacher[0], teacher[1], PseudoLabelSettings(top_rate=top_rate, bottom_rate=bottom_rate)
    )
    assert labels.tolist() == expected


def test_rates_above_one_are_refused() -> None:
    """A frame would be positive and negative."""
    with pytest.raises(ValidationError, match=r"must be at most 1, got 1\.1"):
        PseudoLabelSettings(top_rate=0.6, bottom_rate=0.5)
