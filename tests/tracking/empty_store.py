"""MLflow stores of tests, without the seconds in which MLflow makes and migrates the tables of each."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from hapvr.tracking.runs import Tracker


@cache
def empty_store() -> bytes:
    """The SQLite file that MLflow makes for nothing but its own experiment; once for each test process."""
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
