"""TCA's training on views: what is compared with what, what a checkpoint keeps, and what is refused."""

from dataclasses import replace
from pathlib import Path

import torch

from hapvr.config import Config
from hapvr.losses.settings import ContrastSettings
from hapvr.model.family import video_vectors
from hapvr.model.settings import TcaSettings
from hapvr.steps.project import Project
from hapvr.train.batch import Batch
from hapvr.train.contrast import ContrastTraining, contrast_loss
from hapvr.train.families import build_network, build_training
from hapvr.train.family import StepOutput
from hapvr.train.run_folder import list_checkpoints, read_checkpoint, read_history
from tests.train.runs import cached_views, run, same_weights, with_train, without_times

PLAIN = TcaSettings(dropout=0.0)
BANK = ContrastSettings(bank_size=4, momentum=0.5)


def tca(project: Project, network: TcaSettings = PLAIN, contrast: ContrastSettings = BANK, **changes: object) -> Config:
    return with_train(project, network=network, contrast=contrast, **changes)


def training_of(config: Config, num_videos: int = 12) -> ContrastTraining:
    """As a run starts it."""
    network = build_network(config.train.network, dims=config.whitening.dims, seed=config.train.seed)
    batch_videos = config.train.batch_videos
    training = build_training(config.train, network, num_videos=num_videos, batch_videos=batch_videos, gather=None)
    assert isinstance(training, ContrastTraining)
    return training


def step(training: ContrastTraining, batch: Batch, number: int = 0) -> StepOutput:
    """The forward pass of a batch."""
    output: StepOutput = training(replace(batch, regions=batch.regions.float()), number)
    return output


def test_loss_is_that_of_each_anchor_with_its_own_positive(small_project: Project) -> None:
    """Anchor by anchor: its positive, the positives of other videos and the bank, without what shows its own videos."""
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
                stored = [k for k in range(len(bank)) if not own & set(bank.source_ids[k].tolist())]
                negatives = torch.cat([vectors[others], bank.vectors[stored]])
                cosines = torch.cat([vectors[anchor + 1 : anchor + 2], negatives]) @ vectors[anchor]
                losses.append(contrast_loss(config.train.contrast, cosines[None]))
        total, terms = step(training, batch, number)
        torch.testing.assert_close(total.detach(), torch.stack(losses).mean(), rtol=1e-4, atol=1e-5)
        assert terms["contrast"] == total
        shown = [batch.source_ids[k].tolist() for k in strong]
        assert bank.source_ids[: len(shown)].tolist() == shown if number == 0 else True


def test_resuming_is_exact_with_bank_key_network_and_dropout(small_project: Project, tmp_path: Path) -> None:
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
    assert without_times(read_history(tmp_path / "whole")) == without_times(read_history(tmp_path / "cut"))
