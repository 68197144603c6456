"""How many processors a process computes with, and what programs of ours set before they start."""

import os
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from hapvr.errors import DataError
from hapvr.processors import processors
from hapvr.workers import open_pool, start_process
from tests.conftest import run_python

CHOSEN = ("OMP_NUM_THREADS", "LANCE_CPU_THREADS")


def tell(connection: Connection) -> None:
    """What a process of `start_process` computes with."""
    import numpy
    from threadpoolctl import threadpool_info

    assert numpy
    threads = {pool["num_threads"] for pool in threadpool_info()}
    connection.send([processors(), *(os.environ[name] for name in CHOSEN), threads])


def test_a_process_computes_with_the_processors_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Decoders and networks ask; libraries find it in the environment when they are imported."""
    for name in CHOSEN:
        monkeypatch.delenv(name, raising=False)
    own, theirs = Pipe()
    process = start_process(tell, theirs, num_processors=1)
    assert own.poll(60)
    assert own.recv() == [1, "1", "1", {1}]
    process.join()


def test_what_the_environment_says_of_a_library_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCE_CPU_THREADS", "3")
    own, theirs = Pipe()
    process = start_process(tell, theirs, num_processors=1)
    assert own.poll(60)
    assert own.recv()[2] == "3"
    process.join()


def test_a_program_of_ours_looks_for_garbage_seldom() -> None:
    """Its start makes ten thousands of objects that stay."""
    code = "import gc; from hapvr.cli import main; import atexit\n"
    code += "atexit.register(lambda: print(gc.get_threshold()[0])); main()"
    assert run_python("-c", code, "--version").endswith("\n20000\n")


def test_a_program_of_ours_multiplies_small_matrices_by_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others would wait for the next product at full speed."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    code = "from hapvr.cli import main; import atexit\n"
    code += "def tell():\n import numpy, threadpoolctl\n"
    code += " print([pool['num_threads'] for pool in threadpoolctl.threadpool_info()])\n"
    code += "atexit.register(tell); main()"
    assert run_python("-c", code, "--version").endswith("\n[1]\n")


def test_an_interpreter_that_may_not_be_run_is_an_error_and_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a service's account and a Python below somebody's home folder."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    pool = open_pool(workers=1, limits={})
    with pytest.raises(DataError, match="this account may not run"):
        pool.__enter__()
    with pytest.raises(DataError, match="this account may not run"):
        start_process(tell, Pipe()[1], num_processors=1)
