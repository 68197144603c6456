"""`hapvr serve` as people call it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.commands.conftest import Call
from tests.conftest import CHECKOUT, small_settings, write_settings


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A project without an index."""
    (tmp_path / "videos").mkdir()
    return write_settings(tmp_path / "config.yaml", small_settings(tmp_path / "videos", tmp_path / "data"))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org", ""])
def test_addresses_that_others_reach_are_refused(call: Call, config: Path, host: str) -> None:
    found = call("serve", "--config", config, "--host", host, "--port", 0)
    assert found.code == 2
    assert "--allow-remote" in found.error


def test_a_port_in_use_is_named(call: Call, config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = call("serve", "--config", config, "--port", taken.getsockname()[1], "--json")
    assert found.code == 1
    assert "choose another by --port" in found.json["error"]


def test_wrong_permissions_are_refused(call: Call, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is not there must not open or close more than was meant."""
    monkeypatch.setenv("HAPVR_ALLOWED_ROOTS", "/absent/folder")
    found = call("serve", "--config", config, "--port", 0)
    assert found.code == 2
    assert "HAPVR_ALLOWED_ROOTS" in found.error


@pytest.mark.parametrize("model", ["absent", "", "a\0b", "models:/hapvr/9", "models:/hapvr"])
def test_a_model_that_is_not_there_is_refused_before_there_is_an_index(call: Call, config: Path, model: str) -> None:
    """Otherwise the service would start, and only its first search would say so."""
    found = call("serve", "--config", config, "--port", 0, "--model", model, "--json")
    assert found.code in (1, 2)
    assert found.json["error"].startswith(("model: ", "tracking: "))
    assert not (config.parent / "data").exists()


@pytest.mark.slow
def test_it_says_where_it_answers_and_ends_by_ctrl_c(config: Path) -> None:
    """Without an index, too; exit code 0."""
    code = "from hapvr.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", "--config", str(config), "--port", "0", "--json"]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        with urllib.request.urlopen(f"{address}/index", timeout=60) as answer:
            assert "`hapvr index build` makes one" in json.load(answer)["problem"]
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b"HAP-VR" in answer.read()
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0
