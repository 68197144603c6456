"""Stages that are killed at any moment: a server that runs each in a fork, and the loop that kills them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import CHECKOUT

SERVER = Path(__file__).with_name("stage_server.py")
KILLS = 4
KILLS_IN_A_ROW = 2


@dataclass(frozen=True)
class StageServer:
    """The process of `stage_server.py`. Its stages run one after the other."""

    process: subprocess.Popen[str]

    def start(self, config: Path, stage: str) -> int:
        """Begin a stage; returns the process id."""
        return int(self._ask(json.dumps({"config": str(config), "stage": stage})))

    def status(self) -> int:
        """Wait for the end of the stage begun last: 0, or what `waitpid` says."""
        return int(self._ask(""))

    def finish(self, config: Path, stage: str) -> float:
        """Run a stage to its end; returns the seconds."""
        self.start(config, stage)
        started = time.monotonic()
        assert self.status() == 0
        return time.monotonic() - started

    def _ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()


@contextmanager
def stage_server() -> Iterator[StageServer]:
    """A server, which must end well."""
    process = subprocess.Popen(
        [sys.executable, str(SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)},
    )
    yield StageServer(process)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=60) == 0


def kill_after(pid: int, seconds: float) -> None:
    """SIGKILL after so long."""
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)


def kill_often(
    server: StageServer,
    what: Callable[[], tuple[Path, str]],
    *,
    kill: Callable[[int, int], None],
    after_kill: Callable[[], None] = lambda: None,
    after_end: Callable[[], None],
) -> None:
    """Start and kill a stage until KILLS kills came before its end, then let it end.

    what: configuration and name of the stage to start next. kill: gets the process id and the number of the try.
    after_end: is called whenever the stage has come to its end, after KILLS_IN_A_ROW kills at the latest.
    """
    kills = number = 0
    while kills < KILLS:
        number += 1
        kill(server.start(*what()), number)
        ended = server.status()
        kills += ended == signal.SIGKILL
        after_kill()
        if ended == 0 or kills % KILLS_IN_A_ROW == 0:
            server.finish(*what())
            after_end()
    server.finish(*what())
