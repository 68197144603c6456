"""Families of models: chosen by one line of a configuration, trained, stored, and never mixed up."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from hapvr.config import Config
from hapvr.config_file import dump_config, load_config, parse_config
from hapvr.errors import ConfigError, DataError
from hapvr.losses.settings import ContrastSettings
from hapvr.model.checkpoint import load_network
from hapvr.model.settings import NetworkSettings
from hapvr.model.tca.network import ContextNetwork
from hapvr.model.tca.settings import TcaSettings
from hapvr.model.vvs.settings import VvsSettings
from hapvr.steps.project import Project
from hapvr.train.families import build_network
from hapvr.train.report import read_history
from tests.conftest import write_settings
from tests.train.killed import start_training, wait_for_step
from tests.train.runs import run, same_weights, with_train, without_times
from tests.train.visil import write_visil

FAMILIES = {"similarity": NetworkSettings(), "tca": TcaSettings()}


@pytest.mark.slow
@pytest.mark.parametrize("network", [TcaSettings(), VvsSettings()], ids=lambda network: network.family)
def test_killed_training_equals_the_uninterrupted_one(
    pooled_project: Project, tmp_path: Path, network: TcaSettings | VvsSettings
) -> None:
    """SIGKILL at three steps, each time gone on from the last checkpoint: equal weights and losses, bit for bit."""
    contrast = ContrastSettings(bank_size=4, momentum=0.5)
    settings = with_train(pooled_project, network=network, contrast=contrast, steps=40, log_every_steps=1)
    config = tmp_path / "config.yaml"
    config.write_text(dump_config(settings), encoding="utf-8")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    uninterrupted = start_training(config, pooled_project.folder, whole)
    uninterrupted.join()
    kills = 0
    for target in (3, 14, 25):
        process = start_training(config, pooled_project.folder, cut)
        wait_for_step(process, cut, target)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        kills += process.exitcode == -signal.SIGKILL
    last = start_training(config, pooled_project.folder, cut)
    last.join()
    assert (uninterrupted.exitcode, last.exitcode) == (0, 0)
    assert kills >= 2
    assert same_weights(whole, cut)
    assert without_times(read_history(whole)) == without_times(read_history(cut))


def test_checkpoint_of_another_family_is_refused(small_project: Project, tmp_path: Path) -> None:
    """The message names both families."""
    run(small_project, tmp_path)
    other = with_train(small_project, network=TcaSettings())
    with pytest.raises(DataError, match=r"train\.network\.family: wanted tca, found similarity"):
        run(small_project, tmp_path, other)


def test_one_line_chooses_the_family(small_project: Project, tmp_path: Path) -> None:
    """An override or a file that extends another drops what the family before it had; what is trained is stored as it."""
    base = small_project.folder / "config.yaml"
    assert load_config(base).train.network == NetworkSettings()
    config = load_config(base, overrides={"train.network.spatial_rate": 0.5})
    assert config.train.network == NetworkSettings(spatial_rate=0.5)
    one_line = {"train.network.family": "tca"}
    assert load_config(base, overrides=one_line).train.network == TcaSettings()
    assert load_config(base, overrides={"train.network.heads": 4} | one_line).train.network == TcaSettings(heads=4)
    below = write_settings(tmp_path / "rates.yaml", {"extends": str(base), "train": {"network": {"spatial_rate": 0.5}}})
    above = write_settings(tmp_path / "tca.yaml", {"extends": str(below), "train": {"network": {"family": "tca"}}})
    chosen: Config = load_config(above)
    assert chosen.train.network == TcaSettings()
    run(small_project, tmp_path / "run", chosen)
    network, metadata = load_network(tmp_path / "run" / "network")
    assert isinstance(network, ContextNetwork)
    assert metadata["steps"] == 8


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"family": "tva"}, "does not match any of the expected tags: 'similarity', 'tca'"),
        (
            {"family": "tca", "spatial_rate": 0.5},
            "train.network.tca.spatial_rate: unknown key; allowed here: comparator",
        ),
        ({"family": "tca", "comparator": True}, "set level: frame"),
        ({"heads": 4}, "train.network.heads: unknown key; allowed here: attention"),
    ],
)
def test_settings_of_another_family_are_named(network: dict[str, object], message: str) -> None:
    """An unknown family, and a setting that the family does not have."""
    data = {"name": "x", "sources": [{"kind": "folder", "name": "a", "path": "clips"}], "train": {"network": network}}
    with pytest.raises(ConfigError) as caught:
        parse_config(data, origin="test.yaml")
    assert message in str(caught.value)


def test_tca_takes_the_comparator_of_a_published_file(tmp_path: Path) -> None:
    """Its weights are those of the file, which training leaves as they are; without a file there is nothing to take."""
    settings = TcaSettings(heads=4, level="frame", comparator=True)
    with pytest.raises(
        ConfigError, match=r"comparator_from: TCA does not train a comparator; name a published ViSiL file"
    ):
        build_network(settings, dims=8, seed=0)
    file = tmp_path / "visil.pth"
    weights = write_visil(file)
    network = build_network(settings.model_copy(update={"comparator_from": str(file)}), dims=8, seed=0)
    assert isinstance(network, ContextNetwork)
    assert network.matcher.comparator is not None
    for name, weight in network.matcher.comparator.state_dict().items():
        assert torch.equal(weight, weights[name])
    torch.save({"model": {"attention.context_vector.weight": torch.rand(1, 8)}}, file)
    with pytest.raises(DataError, match=r"visil\.pth has no comparator; name a file of ViSiL"):
        build_network(settings.model_copy(update={"comparator_from": str(file)}), dims=8, seed=0)
