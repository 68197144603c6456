"""InfoNCE and circle loss of one positive, against their equations; the memory bank."""

import math
from collections.abc import Sequence

import pytest
import torch

from hapvr.losses.contrast import MemoryBank, contrast_circle, contrast_infonce, share_a_video
from hapvr.seeding import torch_rng


def rows_of(seed: int, size: tuple[int, int]) -> torch.Tensor:
    """Cosines [N, 1 + K] in double precision."""
    return torch.rand(size, generator=torch_rng(seed, "rows"), dtype=torch.float64) * 2 - 1


def of_infonce(row: Sequence[float], temperature: float) -> float:
    """Eq. 3 of an anchor's row, its positive first."""
    powers = [math.exp((value - max(row)) / temperature) for value in row]
    return -math.log(powers[0] / sum(powers))


def of_circle(row: Sequence[float], margin: float, scale: float, positives: Sequence[bool]) -> float:
    """Eq. 4 of an anchor's row, its positive first; positives: which columns are taken for some."""
    logits = [
        scale * max(1 + margin - value, 0) * (value - 1 + margin)
        if positive
        else scale * max(value + margin, 0) * (value - margin)
        for value, positive in zip(row, positives, strict=True)
    ]
    return math.log(sum(math.exp(logit - max(logits)) for logit in logits)) + max(logits) - logits[0]


@pytest.mark.parametrize(("seed", "size"), [(1, (4, 9)), (2, (1, 2)), (3, (7, 40))])
def test_losses_are_their_equations(seed: int, size: tuple[int, int]) -> None:
    """Means over rows of all losses; the released circle loss takes all of row 0 for positives, and no other column."""
    rows = rows_of(seed, size)
    for temperature in (0.07, 1 / 256):
        wanted = [of_infonce(row, temperature) for row in rows.tolist()]
        found = contrast_infonce(rows, temperature=temperature)
        assert float(found) == pytest.approx(sum(wanted) / len(wanted), rel=1e-9)
    for margin, scale in ((0.25, 256.0), (0.4, 32.0)):
        paper = [of_circle(row, margin, scale, [True] + [False] * (size[1] - 1)) for row in rows.tolist()]
        released = [of_circle(row, margin, scale, [number == 0] * size[1]) for number, row in enumerate(rows.tolist())]
        options = {"margin": margin, "scale": scale}
        assert float(contrast_circle(rows, **options)) == pytest.approx(sum(paper) / len(rows), rel=1e-9)
        found = contrast_circle(rows, form="released", **options)
        assert float(found) == pytest.approx(sum(released) / len(rows), rel=1e-9)


@pytest.mark.parametrize("loss", [lambda *args: contrast_infonce(*args, temperature=0.07), contrast_circle])
def test_what_is_left_out_changes_nothing(loss: object) -> None:
    """A negative that does not count gives neither loss nor gradient; a row without negatives has a loss of 0."""
    assert callable(loss)
    rows = rows_of(4, (3, 6))
    usable = torch.ones(3, 5, dtype=torch.bool)
    usable[:, 2] = False
    kept = torch.cat([rows[:, :3], rows[:, 4:]], dim=1)
    assert float(loss(rows, usable)) == pytest.approx(float(loss(kept)), rel=1e-12)
    given = rows.clone().requires_grad_()
    loss(given, usable).backward()
    assert not given.grad[:, 3].any()
    assert float(loss(rows, torch.zeros_like(usable))) == 0


def test_bank_replaces_the_oldest() -> None:
    """It starts as unit noise; steps of any size go round, and what was given out does not change."""
    bank = MemoryBank(5, dims=3, generator=torch_rng("bank"))
    torch.testing.assert_close(bank.vectors.norm(dim=1), torch.ones(5))
    given = bank.negatives()
    steps = [torch.full((3, 3), float(number)) for number in range(1, 4)]
    for number, vectors in enumerate(steps):
        bank.add(vectors, torch.full((3, 2), number))
    assert bank.vectors[:, 0].tolist() == [2, 3, 3, 3, 2]
    assert bank.source_ids[:, 0].tolist() == [1, 2, 2, 2, 1]
    assert int(bank.pointer) == 4
    assert torch.equal(given, MemoryBank(5, dims=3, generator=torch_rng("bank")).vectors)


def test_bank_tells_what_an_anchor_may_be_compared_with() -> None:
    """Nothing that shows the anchor's video or donor, as video or as donor; noise is of nobody."""
    bank = MemoryBank(4, dims=2, generator=torch_rng("bank"))
    bank.add(torch.eye(2)[[0, 1, 0]], torch.tensor([[7, -1], [8, 9], [5, 7]]))
    anchors = torch.tensor([[7, -1], [9, 3], [1, 2]])
    assert bank.usable(anchors).tolist() == [[False, True, False, True], [True, False, True, True], [True] * 4]
    assert share_a_video(anchors, anchors).tolist() == torch.eye(3, dtype=torch.bool).tolist()
