"""What a call of the command line loads: a short answer must not wait for libraries that it does not use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT
from tests.scorer.bundles import make_bundle, write_scenes

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


@pytest.mark.parametrize("arguments", [("--help",), ("score", "--help"), ("models", "--help")])
def test_help_loads_no_library_of_the_work(arguments: tuple[str, ...]) -> None:
    """Neither what works nor what reads configurations."""
    code, modules = loaded(*arguments)
    assert code == 0
    assert not modules & {*HEAVY, "hapvr.config", "torch", "numpy", "polars", "pyarrow", "yaml"}


@pytest.mark.slow
def test_score_of_a_bundle_loads_what_an_answer_needs(tmp_path: Path) -> None:
    """torch and the decoders, but neither MLflow nor torchvision, timm, plotting or torch's compiler."""
    bundle = make_bundle(tmp_path)
    first, second = (write_scenes(tmp_path / f"{name}.mp4", [number]) for number, name in enumerate("ab"))
    code, modules = loaded("score", first, second, "--model", bundle, "--segments")
    assert code == 0
    assert "torch" in modules
    assert not modules & {*HEAVY}


def test_an_error_of_a_missing_file_or_model_loads_no_network(tmp_path: Path) -> None:
    """A mistyped video and a mistyped registry are told without torch and MLflow; nothing is made at the wrong place."""
    (tmp_path / "a.mp4").write_bytes(b"0")
    registry = ("--tracking-uri", f"sqlite:///{tmp_path / 'absent' / 'mlflow.db'}")
    for names in (("a.mp4", "a.mp4"), ("a.mp4", "missing.mp4")):
        code, modules = loaded("score", *(tmp_path / name for name in names), *registry)
        assert code == 1
        assert not modules & {*HEAVY, "torch"}
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(
    "call", [("list",), ("card", "champion"), ("lineage",), ("promote", "1"), ("rollback",)], ids=lambda call: call[0]
)
def test_an_address_without_a_registry_is_told_without_mlflow(tmp_path: Path, call: tuple[str, ...]) -> None:
    code, modules = loaded("models", *call, "--tracking-uri", f"sqlite:///{tmp_path / 'absent.db'}")
    assert code == 1
    assert not modules & {*HEAVY, "torch"}
