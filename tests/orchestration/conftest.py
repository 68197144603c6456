"""A PostgreSQL server for tests, ended with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.orchestration.test_ui import free_port

NewDatabase = Callable[[str], str]


def program(name: str) -> str:
    """Path of one of PostgreSQL's programs; Debian keeps them out of PATH."""
    found = shutil.which(name) or next(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), None)
    if found is None:
        pytest.skip(f"wants PostgreSQL's {name}: apt-get install postgresql")
    return found


@pytest.fixture(scope="session")
def new_database() -> Iterator[NewDatabase]:
    """Makes a database of that name on a server on 127.0.0.1 and returns its URL."""
    initdb, pg_ctl, createdb = program("initdb"), program("pg_ctl"), program("createdb")
    user = "postgres" if os.geteuid() == 0 else None  # the server refuses to be root
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="postgresql-") as folder:
        if user:
            shutil.chown(folder, user)

        def run(*command: str) -> None:
            done = subprocess.run(
                command,
                user=user,
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr

        def make(name: str) -> str:
            run(createdb, "--host=127.0.0.1", f"--port={port}", "--username=hapvr", name)
            return f"postgresql+psycopg2://hapvr@127.0.0.1:{port}/{name}"

        run(initdb, "--pgdata=data", "--username=hapvr", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
        options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories='' -c fsync=off"
        run(pg_ctl, "start", "--pgdata=data", "--wait", "--log=log", f"--options={options}")
        try:
            yield make
        finally:
            run(pg_ctl, "stop", "--pgdata=data", "--mode=immediate")
