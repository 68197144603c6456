"""The ablations that ship: every row is a valid configuration and trains."""

import pytest
import torch
import yaml
from torch.nn import functional as F

from hapvr.config_file import load_config
from hapvr.model.checkpoint import build_network
from hapvr.model.family import join_extras
from hapvr.networks.backbone import pseudo_labels
from hapvr.seeding import torch_rng
from hapvr.train.batch import Batch, video_pair_labels
from hapvr.train.loop import build_training
from tests.conftest import CHECKOUT

TABLES = yaml.safe_load((CHECKOUT / "configs" / "ablations.yaml").read_text(encoding="utf-8"))
ROWS = {
    f"{table}-{title}": changes for table, rows in TABLES.items() for title, changes in rows.items()
}


@pytest.mark.parametrize("row", ROWS)
def test_each_row_has_a_finite_loss_that_trains_the_network(row: str) -> None:
    """Network and objective of the row's settings give a finite total, and gradients that are
    finite and not all zero."""
    config = load_config(
        CHECKOUT / "configs" / "paper.yaml", overrides={"features.pooled": True, **ROWS[row]}
    )
    network = build_network(config.train.network, dims=8, seed=0, extras_dims=12)
    regions = F.normalize(torch.randn(6, 8, 9, 8, generator=torch_rng(0, "regions")), dim=-1)
    if network.needs_extras:
        pooled = F.normalize(torch.randn(6, 8, 12, generator=torch_rng(0, "pooled")), dim=-1)
        regions = join_extras(
            regions, pooled, torch.rand(6, 8, generator=torch_rng(0, "magnitude")) * 80
        )
    labels = video_pair_labels([{name} for name in "aabbcc"])
    pairs = (labels > 0).nonzero()
    teacher = torch.randn(6, 8, 5, generator=torch_rng(0, "teacher"))
    frame_labels = torch.stack(
        [pseudo_labels(teacher[q], teacher[r], config.pseudo_labels) for q, r in pairs.tolist()]
    )
    training = build_training(config.train, network, num_videos=100_000, batch_videos=3)
    batch = Batch(
        regions=regions,
        labels=labels,
        frame_labels=frame_labels,
        pair_index=pairs,
        first_row=0,
        video_ids=tuple("aabbcc"),
        source_ids=torch.tensor([[number // 2, -1] for number in range(6)]),
    )
    total, *_ = training(batch)
    total.backward()
    gradients = [weight.grad for weight in network.parameters() if weight.grad is not None]
    assert torch.isfinite(total)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert any(gradient.any() for gradient in gradients)
