"""The ablations that ship: every row is a valid configuration and trains."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hapvr.ablations import read_ablations, read_row
from hapvr.commands.terminal import open_project
from hapvr.config_file import load_config
from hapvr.errors import ConfigError
from hapvr.model.checkpoint import build_network
from hapvr.model.family import join_extras
from hapvr.networks.backbone import pseudo_labels
from hapvr.seeding import torch_rng
from hapvr.steps.model_places import RUN_KEY, key_of_now
from hapvr.train.batch import Batch, video_pair_labels
from hapvr.train.families import build_training
from tests.conftest import CHECKOUT

TABLES = read_ablations(CHECKOUT / "configs" / "ablations.yaml")
ROWS: dict[str, dict[str, Any]] = {
    f"{name}/{row}": {**table.common, **settings}
    for name, table in TABLES.items()
    for row, settings in table.rows.items()
}
"""The settings of each row, as `read_row` gives them of the file, which is read once here."""
PAPER_TABLES = {
    "S2VS": {3, 4, 5, 6, 7, 8, 9},
    "HAP-VR": {2, 3, 4, 7, 8, 9, 10, 11, 12},
    "TCA": {"1a", "1b", "1c", "1d", "1e", "1f"},
    "VVS": {3, 4, 5, 6, "B", "C", "D"},
}
"""The tables of ablation of each paper."""


def settings_of(row: str) -> dict[str, Any]:
    return read_row(CHECKOUT / "configs" / "ablations.yaml", row)


def test_every_table_of_ablation_is_there() -> None:
    """Each numbered table of the four papers is the source of one table of the file."""
    sources = [table.source for table in TABLES.values()]
    for paper, numbers in PAPER_TABLES.items():
        for number in numbers:
            start = f"{paper} Table {number}, "
            assert sum(source.startswith(start) for source in sources) == 1, start


@pytest.mark.parametrize("row", ROWS)
def test_each_row_is_a_configuration(row: str) -> None:
    """A row is valid on the preset of its table, and each of its settings arrives there."""
    settings = ROWS[row]
    preset = CHECKOUT / "configs" / TABLES[row.partition("/")[0]].config
    resolved_config = load_config(preset, overrides=settings).model_dump(mode="json")
    for key, value in settings.items():
        node = resolved_config
        for part in key.split("."):
            node = node[part]
        assert node == value


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("hapvr-table99/mae", "no table 'hapvr-table99'"),
        ("hapvr-table2/none", "no row of this name; expected one of hapvr-table2/mae"),
        ("hapvr-table2", "expected one of hapvr-table2/mae, "),
        ("tca-table1f/comparator", "it needs ViSiL's own weights"),
        ("s2vs-table5/dns-100k", "it needs DnS-100K's videos"),
    ],
)
def test_rows_that_cannot_be_run_say_why(row: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        settings_of(row)


def test_a_row_is_read_beside_the_configuration_and_set_stands_over_it(tmp_path: Path) -> None:
    """As `hapvr train --row` does: the tables of the configuration's folder, then `--set`."""
    folder = CHECKOUT / "configs"
    for name in ("paper.yaml", "ablations.yaml"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    changes = ["train.steps=5", f"data_root={tmp_path}"]
    train = open_project(tmp_path / "paper.yaml", changes, row="hapvr-table2/mae").config.train
    assert train.objective.video_ap_loss == "mae"
    assert train.objective.frame_ap_weight == 0
    assert train.videos_rate == 0.1
    assert train.steps == 5
    (tmp_path / "ablations.yaml").unlink()
    with pytest.raises(ConfigError, match=r"ablations\.yaml"):
        open_project(tmp_path / "paper.yaml", changes, row="hapvr-table2/mae")


@pytest.mark.parametrize("row", ROWS)
def test_a_training_of_a_row_carries_its_name(row: str) -> None:
    """Where no name is given; so tables of runs show which row each of them is."""
    key = key_of_now(row)
    assert key.startswith(row.replace("/", "-").replace(".", "-"))
    assert RUN_KEY.fullmatch(key)


def test_settings_follow_the_tables_of_the_papers() -> None:
    """Values that the tables print, where a slip would go unnoticed."""
    assert settings_of("hapvr-table2/mae")["train.videos_rate"] == 0.1
    assert settings_of("hapvr-table3/base-topk")["train.network.temporal_rate"] == 0.06
    assert settings_of("hapvr-table3/base")["train.network.temporal_rate"] == 0
    assert settings_of("tca-table1e/m-0.9")["train.contrast.bank_size"] == 65536
    s2vs = load_config(CHECKOUT / "configs" / "s2vs.yaml")
    assert s2vs.train.objective.infonce_mean == "pairs"


@pytest.mark.parametrize("row", ROWS)
def test_each_row_has_a_finite_loss_that_trains_the_network(row: str) -> None:
    """Network and objective of the row's settings give a finite total, and gradients that are
    finite and not all zero."""
    overrides = {"features.pooled": True, **ROWS[row]}
    overrides.pop("backbone.descriptor", None)  # pooled vectors are of regions
    config = load_config(CHECKOUT / "configs" / "paper.yaml", overrides=overrides)
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
    training = build_training(
        config.train, network, num_videos=100_000, batch_videos=3, clips_per_item=2
    )
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
