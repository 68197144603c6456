"""One GPU is never shared by accident: two runs that want a pool at the same moment, under this project's dagster.yaml."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from tests.orchestration.conftest import Storage

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


CLAIMS = """
import pathlib, sys, time
import dagster as dg

name, folder = sys.argv[1], pathlib.Path(sys.argv[2])

def meet(place):
    (folder / f"{place}.{name}").touch()
    while len(list(folder.glob(f"{place}.*"))) < 2:
        pass

with dg.DagsterInstance.get() as instance:
    log = instance.event_log_storage
    for round in range(100):
        meet(f"start-{round}")
        log.initialize_concurrency_limit_to_default(f"pool-{round}")
        print(int(log.claim_concurrency_slot(f"pool-{round}", name, "step").is_claimed))
        meet(f"end-{round}")
"""


def run_two_at_once(folder: Path, environment: dict[str, str]) -> None:
    """Two processes start a run at the same moment, the first users of the pool; their ops do not overlap."""
    files = [folder / name for name in ("first", "second")]
    runs = [subprocess.Popen([sys.executable, "-c", RUN, str(file)], env=environment) for file in files]
    assert [run.wait(timeout=300) for run in runs] == [0, 0]
    intervals = sorted(tuple(map(float, file.read_text().split())) for file in files)
    assert intervals[0][1] <= intervals[1][0]


def claim_two_at_once(folder: Path, environment: dict[str, str]) -> None:
    """Two processes open a pool of one slot and claim it, at the same moment, a hundred times: one of them gets it."""
    (folder / "meetings").mkdir()
    claims = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMS, name, str(folder / "meetings")],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("first", "second")
    ]
    first, second = (claim.communicate(timeout=300)[0].split() for claim in claims)
    assert [int(one) + int(other) for one, other in zip(first, second, strict=True)] == [1] * 100


def change_limits(environment: dict[str, str]) -> None:
    """What somebody set stays when a run opens the pool again; a default that changed is followed."""
    limits = []
    settings = Path(environment["DAGSTER_HOME"], "dagster.yaml")
    text = settings.read_text()
    assert "default_limit: 1 " in text
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        for default in (3, 1):
            settings.write_text(text.replace("default_limit: 1 ", f"default_limit: {default} "))
            with dg.DagsterInstance.get() as instance:
                log = instance.event_log_storage
                if not limits:
                    log.set_concurrency_slots("set", 2)
                for pool in ("set", "open", "open"):
                    assert log.initialize_concurrency_limit_to_default(pool)
                limits.append({limit.name: limit.limit for limit in log.get_pool_limits()})
                slots = {pool: log.get_concurrency_info(pool).slot_count for pool in ("set", "open")}
                assert slots == limits[-1]
    assert limits == [{"set": 2, "open": 3}, {"set": 2, "open": 1}]


def test_pools_hold_no_more_than_their_limit(storage: Storage, tmp_path: Path) -> None:
    """Limits, runs, claims."""
    environment = os.environ | storage.home(tmp_path)
    change_limits(environment)
    run_two_at_once(tmp_path, environment)
    claim_two_at_once(tmp_path, environment)
