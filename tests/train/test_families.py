"""Families of models: chosen by one line of a configuration, trained, stored, and never mixed
up."""

from pathlib import Path
from typing import Any

import pytest

from hapvr.config import Config
from hapvr.config_file import load_config
from hapvr.model.checkpoint import load_network
from hapvr.model.settings import NetworkSettings, TcaSettings
from hapvr.model.tca import ContextNetwork
from hapvr.steps.project import Project
from tests.conftest import write_settings
from tests.train.runs import run


@pytest.mark.parametrize(
    ("overrides", "network"),
    [
        ({}, NetworkSettings()),
        ({"train.network.spatial_rate": 0.5}, NetworkSettings(spatial_rate=0.5)),
        ({"train.network.family": "tca"}, TcaSettings()),
        (
            {"train.network.heads": 4, "train.network.family": "tca"},
            TcaSettings(heads=4),
        ),
    ],
    ids=["no override", "a setting", "a family", "a family and its setting"],
)
def test_an_override_chooses_the_family(
    small_project: Project, overrides: dict[str, Any], network: NetworkSettings | TcaSettings
) -> None:
    config = load_config(small_project.folder / "config.yaml", overrides=overrides)
    assert config.train.network == network


@pytest.fixture
def chosen(small_project: Project, tmp_path: Path) -> Config:
    """A file with the family TCA, over one with a setting of the similarity network."""
    base = small_project.folder / "config.yaml"
    rates = {"extends": str(base), "train": {"network": {"spatial_rate": 0.5}}}
    below = write_settings(tmp_path / "rates.yaml", rates)
    family = {"extends": str(below), "train": {"network": {"family": "tca"}}}
    return load_config(write_settings(tmp_path / "tca.yaml", family))


def test_a_family_drops_the_settings_of_the_one_before(chosen: Config) -> None:
    assert chosen.train.network == TcaSettings()


def test_a_trained_network_is_stored_with_its_family(
    small_project: Project, chosen: Config, tmp_path: Path
) -> None:
    run(small_project, tmp_path / "run", chosen)
    network, metadata = load_network(tmp_path / "run" / "network")
    assert isinstance(network, ContextNetwork)
    assert metadata["steps"] == 8
