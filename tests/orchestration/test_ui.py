"""What `make ui` and `make demo` refuse before they start anything."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.demo import main as demo
from pipelines.ui import main, only_server
from tests.conftest import small_settings, write_settings


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_addresses_that_others_reach_are_refused(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 before anything is started; the message says how to insist."""
    monkeypatch.setattr(sys, "argv", ["ui", "--host", host])
    with pytest.raises(SystemExit, match="2"):
        main()
    error = capsys.readouterr().err
    assert "--allow-remote" in error
    assert host in error


@pytest.mark.parametrize("program", [main, demo])
def test_an_instance_has_one_server(
    program: Callable[[], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While one serves an instance, a second one ends with exit code 2 and says what to do: two
    daemons start runs twice."""
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
    output = capsys.readouterr()
    assert "end it first" in output.out + output.err
