"""The limit of open files, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import CHECKOUT

PROGRAM = """
import os, resource, sys
from hapvr.errors import DataError
from hapvr.storage.open_files import allow_open_files
soft, hard, count = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    allow_open_files(count)
except DataError as error:
    sys.exit(str(error))
files = [open("/dev/null") for _ in range(count)]
"""


def run(*limits: int) -> subprocess.CompletedProcess[str]:
    """A process with these limits, soft and hard, that is to open so many files."""
    command = [sys.executable, "-c", PROGRAM, *map(str, limits)]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("count", [10, 300])
def test_files_can_be_opened(count: int) -> None:
    """Below the limit and beyond it."""
    done = run(100, 1000, count)
    assert done.returncode == 0, done.stderr


def test_too_many_are_refused_with_what_to_do() -> None:
    """Before any is opened."""
    done = run(100, 1000, 950)
    assert done.returncode == 1
    assert "950 files of shards have to be open at once, and the system allows 1000; raise that" in done.stderr
    assert "shard_videos" in done.stderr
