"""One GPU is never shared by accident: two runs of a pool's ops, under this project's dagster.yaml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT
from tests.orchestration.conftest import NewDatabase

RUN = """
import pathlib, sys, time
import dagster as dg

@dg.op(pool="gpu")
def hold_the_gpu():
    start = time.time()
    time.sleep(1)
    pathlib.Path(sys.argv[1]).write_text(f"{start} {time.time()}")

@dg.job(executor_def=dg.in_process_executor)
def holding():
    hold_the_gpu()

with dg.DagsterInstance.get() as instance:
    pathlib.Path(sys.argv[1] + ".ready").touch()
    while len(list(pathlib.Path(sys.argv[1]).parent.glob("*.ready"))) < 2:
        time.sleep(0.01)
    assert holding.execute_in_process(instance=instance).success
"""


def run_two_at_once(folder: Path, instance: str, environment: dict[str, str]) -> None:
    """Two processes start a run at the same moment, the first users of the pool; their ops do not overlap."""
    home = folder / "dagster_home"
    home.mkdir()
    shutil.copy(CHECKOUT / "dagster_home" / instance / "dagster.yaml", home)
    environment = os.environ | environment | {"DAGSTER_HOME": str(home)}
    files = [folder / name for name in ("first", "second")]
    first = "import dagster as dg; from assets.partitions import open_pool; open_pool(dg.DagsterInstance.get())"
    subprocess.run([sys.executable, "-c", first], env=environment, cwd=CHECKOUT, check=True)
    runs = [subprocess.Popen([sys.executable, "-c", RUN, str(file)], env=environment) for file in files]
    assert [run.wait(timeout=300) for run in runs] == [0, 0]
    intervals = sorted(tuple(map(float, file.read_text().split())) for file in files)
    assert intervals[0][1] <= intervals[1][0]


def test_two_runs_take_the_gpu_one_after_the_other(tmp_path: Path) -> None:
    """With Dagster's storage in SQLite."""
    run_two_at_once(tmp_path, ".", {})


@pytest.mark.slow
def test_two_runs_take_the_gpu_one_after_the_other_in_postgresql(tmp_path: Path, new_database: NewDatabase) -> None:
    """With Dagster's storage in PostgreSQL."""
    run_two_at_once(tmp_path, "team", {"HAPVR_DAGSTER_DATABASE": new_database("pools")})
