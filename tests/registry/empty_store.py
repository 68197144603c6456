"""MLflow stores of tests, without the seconds in which MLflow makes and migrates the tables of
each; and servers over them."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from hapvr.registry.runs import Tracker


@cache
def empty_store() -> bytes:
    """The SQLite file that MLflow makes for nothing but its own experiment; once for each test
    process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mlflow.db"
        Tracker(f"sqlite:///{file}", "Default")
        assert [path.name for path in file.parent.iterdir()] == [file.name]
        return file.read_bytes()


def new_store(folder: Path) -> str:
    """The URI of a store of its own in `folder`, which may be missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mlflow.db").write_bytes(empty_store())
    return f"sqlite:///{folder}/mlflow.db"


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[str]:
    """The address of a real server over a SQLite file in `folder`, killed with its workers at the
    end."""
    if not (folder / "mlflow.db").exists():
        new_store(folder)
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        f"sqlite:///{folder / 'mlflow.db'}",
    ]
    command += [
        "--artifacts-destination",
        str(folder / "artifacts"),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    quiet = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    process = subprocess.Popen(
        [*command, "--workers", "1"],
        env=quiet,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            assert process.poll() is None
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.3)

        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
