"""`hapvr serve` as people call it."""

import socket
from pathlib import Path

import pytest

from tests.commands.conftest import Call
from tests.conftest import small_settings, write_settings


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A project without an index."""
    (tmp_path / "videos").mkdir()
    return write_settings(
        tmp_path / "config.yaml", small_settings(tmp_path / "videos", tmp_path / "data")
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_addresses_that_others_reach_are_refused(call: Call, config: Path, host: str) -> None:
    outcome = call("serve", "--config", config, "--host", host, "--port", 0)
    assert outcome.code == 2
    assert "--allow-remote" in outcome.error


def test_a_port_in_use_is_named(call: Call, config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outcome = call("serve", "--config", config, "--port", taken.getsockname()[1], "--json")
    assert outcome.code == 1
    assert "choose another by --port" in outcome.json["error"]
