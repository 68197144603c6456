"""`make ui` for real: all servers, on the loopback address only, ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pipelines.demo import main as demo
from pipelines.ui import main, only_server
from tests.conftest import CHECKOUT, small_settings, write_settings
from tests.orchestration.servers import environment_in, wait_until


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_addresses_that_others_reach_are_refused(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 before anything is started; the message says how to insist."""
    monkeypatch.setattr(sys, "argv", ["ui", "--host", host])
    with pytest.raises(SystemExit, match="2"):
        main()
    said = capsys.readouterr().err
    assert "--allow-remote" in said
    assert host in said


@pytest.mark.parametrize("program", [main, demo])
def test_an_instance_has_one_server(
    program: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While one serves an instance, a second one ends with exit code 2 and says what to do: two daemons start runs twice."""
    config = write_settings(tmp_path / "config.yaml", small_settings(tmp_path, tmp_path / "data"))
    for name in ("HAPVR_MLFLOW_PAGE", "HAPVR_DAGSTER_PAGE", "MLFLOW_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "")  # they would stay set
    monkeypatch.setenv("HAPVR_CONFIG", str(config))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["program"])
    handler = signal.getsignal(signal.SIGTERM)
    with only_server(tmp_path), pytest.raises(SystemExit, match="2"):
        sys.exit(program())
    signal.signal(signal.SIGTERM, handler)
    said = capsys.readouterr()
    assert "end it first" in said.out + said.err


@pytest.mark.slow
def test_ctrl_c_ends_make_demo_and_all_that_it_started(clips_folder: Path, tmp_path: Path) -> None:
    """While runs are under way: make ends, says nothing of an error, and leaves no process."""
    environment = environment_in(tmp_path, small_settings(clips_folder, tmp_path / "data"))
    venv = Path(sys.executable).parent.parent
    command = ["make", "--assume-old", f"{venv}/.installed", f"VENV={venv}"]
    command += [f"DAGSTER_HOME={environment['DAGSTER_HOME']}", "demo"]
    says = tmp_path / "says.txt"
    with says.open("wb") as output:
        make = subprocess.Popen(
            command, cwd=CHECKOUT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    wait_until(lambda: "find_videos" in says.read_text(encoding="utf-8"), "the first job")
    family = psutil.Process(make.pid).children(recursive=True)
    os.killpg(make.pid, signal.SIGINT)
    make.wait(timeout=60)
    assert "***" not in says.read_text(encoding="utf-8")
    left = psutil.wait_procs(family, timeout=10)[1]
    assert [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []
