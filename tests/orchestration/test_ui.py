"""What `make ui` and `make demo` refuse before they start anything."""

import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.demo import main as demo
from pipelines.ui import free_port, main, only_server
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


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """That of programs over a small project, which they change; the home of their instance."""
    config = write_settings(tmp_path / "config.yaml", small_settings(tmp_path, tmp_path / "data"))
    for name in ("HAPVR_MLFLOW_PAGE", "HAPVR_DAGSTER_PAGE", "MLFLOW_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "")  # they would stay set
    monkeypatch.setenv("HAPVR_CONFIG", str(config))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["program"])
    handler = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize("program", [main, demo])
def test_an_instance_has_one_server(
    program: Callable[[], int], environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While one serves an instance, a second one ends with exit code 2 and says what to do: two
    daemons start runs twice."""
    with only_server(environment), pytest.raises(SystemExit, match="2"):
        sys.exit(program())
    output = capsys.readouterr()
    assert "end it first" in output.out + output.err


PORTS = ("--dagster-port", "--mlflow-port", "--search-port")


@pytest.mark.parametrize("option", PORTS)
@pytest.mark.usefixtures("environment")
def test_a_port_that_another_program_uses_is_refused(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ports = {name: free_port() for name in PORTS} | {option: port}
        words = [f"{name}={number}" for name, number in ports.items()]
        monkeypatch.setattr(sys, "argv", ["ui", *words])
        assert main() == 2

    assert f"{option} {port}: no server can listen there" in capsys.readouterr().out
