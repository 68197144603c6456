"""Dockerfile and compose.yaml, as far as that goes without containers: `mlflow_server` runs the command of the service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hapvr.config_file import load_config
from tests.conftest import CHECKOUT

VARIABLE = re.compile(r"\$\{(\w+)")


def services() -> dict[str, Any]:
    """The services of compose.yaml."""
    loaded: dict[str, Any] = yaml.safe_load((CHECKOUT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    return loaded


def test_only_this_machine_reaches_the_published_ports() -> None:
    """No server asks who is there, so no port is published to other machines."""
    ports = [port for service in services().values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_configuration_of_the_team_reads_what_compose_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of configs/team.yaml are set by the service, and its videos are where compose mounts them."""
    dagster = services()["dagster"]
    environment = dagster["environment"]
    path = CHECKOUT / environment["HAPVR_CONFIG"]
    names = set(VARIABLE.findall(path.read_text(encoding="utf-8")))
    assert names <= environment.keys()
    for name in names:
        monkeypatch.setenv(name, environment[name])
    config = load_config(path)
    mounts = [
        Path(volume.split(":")[-2] if volume.endswith(":ro") else volume.split(":")[-1])
        for volume in dagster["volumes"]
    ]
    assert Path(config.data_root).parent in mounts
    assert Path(config.sources[0].path) in mounts  # type: ignore[union-attr]
    assert config.tracking.uri == "http://mlflow:5000"
    assert (CHECKOUT / "dagster_home" / Path(environment["DAGSTER_HOME"]).name / "dagster.yaml").is_file()
