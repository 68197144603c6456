"""Families of models: chosen by one line of a configuration, trained, stored, and never mixed
up."""

from pathlib import Path

from hapvr.config_file import load_config
from hapvr.model.checkpoint import load_network
from hapvr.model.settings import NetworkSettings, TcaSettings
from hapvr.model.tca import ContextNetwork
from hapvr.steps.project import Project
from tests.conftest import write_settings
from tests.train.runs import run


def test_one_line_chooses_the_family(small_project: Project, tmp_path: Path) -> None:
    """An override or a file that extends another drops what the family before it had; what is
    trained is stored as it."""
    base = small_project.folder / "config.yaml"
    assert load_config(base).train.network == NetworkSettings()
    config = load_config(base, overrides={"train.network.spatial_rate": 0.5})
    assert config.train.network == NetworkSettings(spatial_rate=0.5)
    one_line = {"train.network.family": "tca"}
    assert load_config(base, overrides=one_line).train.network == TcaSettings()
    assert load_config(
        base, overrides={"train.network.heads": 4} | one_line
    ).train.network == TcaSettings(heads=4)
    below = write_settings(
        tmp_path / "rates.yaml", {"extends": str(base), "train": {"network": {"spatial_rate": 0.5}}}
    )
    above = write_settings(
        tmp_path / "tca.yaml", {"extends": str(below), "train": {"network": {"family": "tca"}}}
    )
    chosen = load_config(above)
    assert chosen.train.network == TcaSettings()
    run(small_project, tmp_path / "run", chosen)
    network, metadata = load_network(tmp_path / "run" / "network")
    assert isinstance(network, ContextNetwork)
    assert metadata["steps"] == 8
