"""What make gives to the processes that it starts."""

from __future__ import annotations

import os
import subprocess

from tests.conftest import CHECKOUT


def test_processes_keep_bytecode_where_the_environment_turns_it_off() -> None:
    """Without bytecode every process of the demo, the servers and the tests compiles all that it imports."""
    shown = subprocess.run(
        ["make", "--no-print-directory", "--eval=shown: ; @echo [$$PYTHONDONTWRITEBYTECODE]", "shown"],
        cwd=CHECKOUT,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "[]\n"
