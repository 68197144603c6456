"""What a call of the command line loads: a short answer must not wait for libraries that it does not use."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.conftest import CHECKOUT

HEAVY = (
    "dagster",
    "lightning_fabric",
    "matplotlib",
    "mlflow",
    "pandas",
    "timm",
    "torchvision",
    "torch._dynamo",
    "yt_dlp",
)
CALL = """
import json, sys
from hapvr.cli import main
if __name__ == "__main__":
    try:
        main()
    except SystemExit as ended:
        print(json.dumps([ended.code or 0, sorted(sys.modules)]), file=sys.stderr)
"""


def loaded(*arguments: object) -> tuple[int, set[str]]:
    """Exit code of `hapvr` with these arguments in a process of its own, and the modules it has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", CALL, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT), "COLUMNS": "200"},
        timeout=300,
        check=True,
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    return code, set(modules)


def test_help_loads_no_library_of_the_work() -> None:
    """Neither what works nor what reads configurations."""
    code, modules = loaded("score", "--help")
    assert code == 0
    assert not modules & {*HEAVY, "hapvr.config", "torch", "numpy", "polars", "pyarrow", "yaml"}
