"""The ablations' rows, and the grid that trains them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.nn import functional as F

from bench.ablation import TITLES, main, table_markdown
from bench.ablation_run import read_rows
from hapvr.config import digest
from hapvr.config_file import load_config
from hapvr.errors import ConfigError
from hapvr.labels.pairs import positive_pairs, video_pair_labels
from hapvr.labels.pseudo import pseudo_labels
from hapvr.losses.registry import RANKING_LOSSES
from hapvr.seeding import torch_rng
from hapvr.stages.project import Project
from hapvr.train.step import TrainingModule, build_network, build_objective
from tests.conftest import CHECKOUT, write_settings

ROWS = CHECKOUT / "configs" / "ablations"
TABLES = sorted(folder.name for folder in ROWS.iterdir() if folder.is_dir())


@pytest.mark.parametrize("path", sorted(ROWS.glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_row_has_a_finite_loss_that_trains_the_network(path: Path) -> None:
    """Network and objective of the row's settings give a finite total, and gradients that are finite and not all zero."""
    config = load_config(path)
    network = build_network(config.train.network, dims=8, seed=0)
    regions = F.normalize(torch.randn(6, 8, 9, 8, generator=torch_rng(0, "regions")), dim=-1)
    labels = video_pair_labels([{name} for name in "aabbcc"])
    pairs = positive_pairs(labels, include_self=True)
    teacher = torch.randn(6, 8, 5, generator=torch_rng(0, "teacher"))
    rates = {name: getattr(config.pseudo_labels, name) for name in ("top_rate", "bottom_rate", "exact")}
    frame_labels = torch.stack([pseudo_labels(teacher[q], teacher[r], **rates) for q, r in pairs.tolist()])
    total, *_ = TrainingModule(network, build_objective(config.train.objective))(regions, labels, frame_labels, pairs)
    total.backward()
    gradients = [weight.grad for weight in network.parameters() if weight.grad is not None]
    assert torch.isfinite(total)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("table", TABLES)
def test_rows_of_a_table_differ(table: str) -> None:
    """No two rows of a table have the same settings, or the same name in MLflow."""
    configs = [load_config(path) for path in sorted((ROWS / table).glob("*.yaml"))]
    assert len({digest(config.train, config.pseudo_labels) for config in configs}) == len(configs)
    assert len({config.name for config in configs}) == len(configs)


def test_table_2_has_a_row_for_every_ranking_loss() -> None:
    """Each registered loss at video level, and none at frame level."""
    objectives = [load_config(path).train.objective for path in sorted((ROWS / "table2").glob("*.yaml"))]
    assert [objective.video_ap_loss for objective in objectives] == list(RANKING_LOSSES)
    assert {objective.frame_ap_weight for objective in objectives} == {0}


def test_the_grid_knows_all_tables_that_share_views() -> None:
    """Every folder is a table of the grid but the one whose rows need pseudo labels of their own, which is refused."""
    assert set(TABLES) == {*TITLES, "pseudo_labels"}
    for table in TITLES:
        assert len(read_rows(ROWS, table)) == len(list((ROWS / table).glob("*.yaml")))
    with pytest.raises(ConfigError, match=r"rates-0p15\.yaml: sets pseudo_labels, which needs other cached data"):
        read_rows(ROWS, "pseudo_labels")
    with pytest.raises(ConfigError, match="there are no rows"):
        read_rows(ROWS, "table1")


def write_row(folder: Path, name: str, train: dict[str, Any]) -> None:
    """A row's file in the table `t`."""
    (folder / "t").mkdir(exist_ok=True)
    write_settings(folder / "t" / name, {"train": train})


def run_grid(project: Project, folder: Path, *options: str) -> int:
    """Two steps of every row of the table `t`, with what a project left in its data root."""
    config = write_settings(folder / "config.yaml", yaml.safe_load(project.config.model_dump_json()))
    files = ["--config", str(config), "--rows", str(folder), "--out", str(folder / "out.json")]
    return main([*files, "--tables", "t", "--steps", "2", "--batch-videos", "4", *options])


def test_grid_trains_evaluates_and_goes_on_where_it_was(
    small_project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal rows are trained once per seed, a second call trains nothing, and a new row is all that a third one trains."""
    write_row(tmp_path, "01-full.yaml", {})
    write_row(tmp_path, "02-same.yaml", {"objective": {"frame_ap_weight": 6.0}})
    assert run_grid(small_project, tmp_path, "--seeds", "0", "1") == 0
    runs = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert [run["seed"] for run in runs.values()] == [0, 1]
    assert all(0 <= run[kind]["mean"] <= 1 for run in runs.values() for kind in ("untrained", "trained"))
    assert all(run["last_loss"] < run["first_loss"] for run in runs.values())
    first = capsys.readouterr().out
    assert "runs: 2, of them 2 now" in first
    assert run_grid(small_project, tmp_path, "--seeds", "0", "1") == 0
    second = capsys.readouterr().out
    assert "runs: 2, of them 0 now" in second
    assert second.partition("###")[2] == first.partition("###")[2]
    write_row(tmp_path, "03-video.yaml", {"objective": {"frame_ap_weight": 0}})
    assert run_grid(small_project, tmp_path, "--seeds", "0", "1") == 0
    assert "runs: 4, of them 2 now" in capsys.readouterr().out


@pytest.mark.slow
def test_grid_is_the_same_in_processes(small_project: Project, tmp_path: Path) -> None:
    """Runs in two processes give the weights and scores of runs one after the other."""
    write_row(tmp_path, "01-full.yaml", {})
    results = []
    for jobs in ("1", "2"):
        assert run_grid(small_project, tmp_path, "--seeds", "0", "1", "--jobs", jobs) == 0
        runs = json.loads((tmp_path / "out.json").read_text())["runs"]
        results.append({key: run | {"seconds": 0} for key, run in runs.items()})
        (tmp_path / "out.json").unlink()
    assert results[0] == results[1]


def test_grid_reports_a_run_that_diverged(
    small_project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loss that is not finite is a line of the table and an exit code of 1, not the end of the grid."""
    write_row(tmp_path, "01-full.yaml", {})
    write_row(tmp_path, "02-wild.yaml", {"optimizer": {"learning_rate": 1e30, "warmup_steps": 0}})
    assert run_grid(small_project, tmp_path, "--seeds", "0") == 1
    printed = capsys.readouterr().out
    assert "| wild | not finite |" in printed
    assert "| 1 of 1 |" in printed


def test_table_markdown_states_mean_and_spread() -> None:
    """Percentages by hand: 50 and 54 are 52.0 with a standard deviation of 2.8; the gain is over 40."""
    runs = [
        {"status": "ok", "trained": {"mean": value}, "untrained": {"mean": 0.4}, "first_loss": 2.0, "last_loss": last}
        for value, last in ((0.5, 1.0), (0.54, 2.5))
    ]
    last_line = table_markdown("t", {"row": runs}).splitlines()[-1]
    assert last_line == "| row | 52.0 ± 2.8 | 40.0 | 12.0 ± 2.8 | 2.000 → 1.750 | 1 of 2 |"


def test_grid_scores_what_validation_chose(
    small_project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --validate-every a run that is there is made again, once; its best weights validate no worse than its last ones."""
    write_row(tmp_path, "01-full.yaml", {"validate_every_steps": 1})
    assert run_grid(small_project, tmp_path, "--seeds", "0") == 0
    without = next(iter(json.loads((tmp_path / "out.json").read_text())["runs"].values()))
    for new in (1, 0):
        capsys.readouterr()
        assert run_grid(small_project, tmp_path, "--seeds", "0", "--validate-every", "1") == 0
        assert f"runs: 1, of them {new} now" in capsys.readouterr().out
    run = next(iter(json.loads((tmp_path / "out.json").read_text())["runs"].values()))
    assert run["trained"] == without["trained"]
    assert 0 <= run["best_step"] < 2
    assert run["validation"]["best"] >= run["validation"]["trained"]


def test_table_of_the_best_weights_states_their_validation() -> None:
    """The test scores are those of the best weights; steps count from 1."""
    run = {
        "status": "ok",
        "trained": {"mean": 0.5},
        "best": {"mean": 0.6},
        "untrained": {"mean": 0.4},
        "best_step": 24,
        "validation": {"best": 0.7, "trained": 0.65, "untrained": 0.3},
    }
    lines = table_markdown("t", {"row": [run]}, weights="best").splitlines()
    assert lines[0] == "### t, best by validation"
    assert lines[2] == "| row | mean | untrained | gain | steps | validation | last | untrained there |"
    assert lines[-1] == "| row | 60.0 | 40.0 | 20.0 | 25 | 70.0 | 65.0 | 30.0 |"
