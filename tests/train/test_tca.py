"""TCA's training: losses of one positive against their equations, the bank, what is compared with
what, resuming."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hapvr.config import Config
from hapvr.losses.settings import ContrastSettings
from hapvr.model.checkpoint import build_network
from hapvr.model.family import video_vectors
from hapvr.model.settings import TcaSettings
from hapvr.seeding import torch_rng
from hapvr.steps.project import Project
from hapvr.train.batch import STRENGTHS
from hapvr.train.families import build_training
from hapvr.train.run_folder import list_checkpoints, read_checkpoint, read_history
from hapvr.train.tca import ContrastTraining, MemoryBank, contrast_loss
from tests.train.runs import cached_views, run, same_weights, with_train, without_times

PLAIN = TcaSettings(dropout=0.0)
BANK = ContrastSettings(bank_size=4, momentum=0.5)


def rows_of(seed: int, size: tuple[int, int]) -> torch.Tensor:
    """Cosines [N, 1 + K] in double precision."""
    return torch.rand(size, generator=torch_rng(seed, "rows"), dtype=torch.float64) * 2 - 1


def of_circle(row: Sequence[float], margin: float, scale: float) -> float:
    """Eq. 4 of an anchor's row, its positive first."""
    logits = [scale * max(1 + margin - row[0], 0) * (row[0] - 1 + margin)]
    logits += [scale * max(value + margin, 0) * (value - margin) for value in row[1:]]
    return (
        math.log(sum(math.exp(logit - max(logits)) for logit in logits)) + max(logits) - logits[0]
    )


@pytest.mark.parametrize(("seed", "size"), [(1, (4, 9)), (2, (1, 2)), (3, (7, 40))])
@pytest.mark.parametrize(("margin", "scale"), [(0.25, 256.0), (0.4, 32.0)])
def test_the_papers_circle_loss_is_its_equation(
    seed: int, size: tuple[int, int], margin: float, scale: float
) -> None:
    """Mean over rows; test_tca_golden.py has the other losses."""
    rows = rows_of(seed, size)
    wanted = [of_circle(row, margin, scale) for row in rows.tolist()]
    settings = ContrastSettings(margin=margin, scale=scale, circle_form="paper")
    loss = contrast_loss(settings, rows)
    assert float(loss) == pytest.approx(sum(wanted) / len(rows), rel=1e-9)


@pytest.mark.parametrize("settings", [ContrastSettings(loss="infonce"), ContrastSettings()])
def test_what_is_left_out_changes_nothing(settings: ContrastSettings) -> None:
    """A negative that does not count gives neither loss nor gradient; a row without negatives has a
    loss of 0."""
    rows = rows_of(4, (3, 6))
    usable = torch.ones(3, 5, dtype=torch.bool)
    usable[:, 2] = False
    kept = torch.cat([rows[:, :3], rows[:, 4:]], dim=1)
    wanted = pytest.approx(float(contrast_loss(settings, kept)), rel=1e-12)
    assert float(contrast_loss(settings, rows, usable)) == wanted
    given = rows.clone().requires_grad_()
    contrast_loss(settings, given, usable).backward()
    assert not given.grad[:, 3].any()
    assert float(contrast_loss(settings, rows, torch.zeros_like(usable))) == 0


def test_bank_tells_what_an_anchor_may_be_compared_with() -> None:
    """Nothing that shows the anchor's video or host, as video or as host; noise is of nobody."""
    bank = MemoryBank(4, dims=2, generator=torch_rng("bank"))
    bank.add(torch.eye(2)[[0, 1, 0]], torch.tensor([[7, -1], [8, 9], [5, 7]]))
    anchors = torch.tensor([[7, -1], [9, 3], [1, 2]])
    assert bank.usable(anchors).tolist() == [
        [False, True, False, True],
        [True, False, True, True],
        [True] * 4,
    ]


def tca(
    project: Project,
    network: TcaSettings = PLAIN,
    contrast: ContrastSettings = BANK,
    **changes: object,
) -> Config:
    return with_train(project, network=network, contrast=contrast, **changes)


def training_of(config: Config, num_videos: int = 12) -> ContrastTraining:
    """As a run starts it."""
    network = build_network(
        config.train.network, dims=config.whitening.dims, seed=config.train.seed
    )
    batch_videos = config.train.batch_videos
    training = build_training(
        config.train,
        network,
        num_videos=num_videos,
        batch_videos=batch_videos,
        clips_per_item=len(STRENGTHS),
    )
    assert isinstance(training, ContrastTraining)
    return training


def test_loss_is_that_of_each_anchor_with_its_own_positive(small_project: Project) -> None:
    """Anchor by anchor: its positive, the positives of other videos and the bank, without what
    shows its own videos."""
    config = tca(small_project, contrast=ContrastSettings(bank_size=8, momentum=0.5))
    training = training_of(config)
    network = training.network
    bank = training.bank
    for number in range(2):
        batch = cached_views(small_project)[number]
        with torch.no_grad():
            vectors = video_vectors(network.embed(batch.regions.float())[:, :, 0])
            strong = [place for place in range(len(vectors)) if place % 2]
            losses = []
            for anchor in range(0, len(vectors), 2):
                own = set(batch.source_ids[anchor].tolist()) - {-1}
                others = [k for k in strong if not own & set(batch.source_ids[k].tolist())]
                stored = [
                    k
                    for k in range(len(bank.vectors))
                    if not own & set(bank.source_ids[k].tolist())
                ]
                negatives = torch.cat([vectors[others], bank.vectors[stored]])
                cosines = torch.cat([vectors[anchor + 1 : anchor + 2], negatives]) @ vectors[anchor]
                losses.append(contrast_loss(config.train.contrast, cosines[None]))

        total, terms = training(replace(batch, regions=batch.regions.float()), number)
        torch.testing.assert_close(total.detach(), torch.stack(losses).mean(), rtol=1e-4, atol=1e-5)
        assert terms["contrast"] == total
        shown = [batch.source_ids[k].tolist() for k in strong]
        assert bank.source_ids[: len(shown)].tolist() == shown if number == 0 else True


def test_resuming_is_exact_with_bank_key_network_and_dropout(
    small_project: Project, tmp_path: Path
) -> None:
    """All that changes is in the checkpoint, and draws are those of the step."""
    config = tca(small_project, TcaSettings(dropout=0.3))
    run(small_project, tmp_path / "whole", config)
    run(small_project, tmp_path / "cut", config)
    newest = list_checkpoints(tmp_path / "cut" / "checkpoints")[-1]
    state = read_checkpoint(newest)["training"]
    assert {"bank.vectors", "bank.source_ids", "bank.pointer"} < set(state)
    assert any(name.startswith("key_network.") for name in state)
    newest.unlink()
    assert run(small_project, tmp_path / "cut", config).first_step == 4
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
    assert without_times(read_history(tmp_path / "whole")) == without_times(
        read_history(tmp_path / "cut")
    )
