"""The programs that the documents print run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT
from tests.registry.conftest import Registered

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(registered: Registered, tmp_path: Path) -> Path:
    """A folder as the examples have it: the demo's registry, a bundle, and the clips a, b and c."""
    registry = Path(registered.uri.removeprefix("sqlite:///")).parent
    (tmp_path / "data" / "demo").mkdir(parents=True)
    (tmp_path / "data" / "demo" / "mlflow").symlink_to(registry)
    (tmp_path / "bundle").symlink_to(registered.bundle)
    for name, clip in {"a": "a", "b": "b", "c": "copy"}.items():
        (tmp_path / f"{name}.mp4").symlink_to(registered.clips / f"{clip}.mp4")
    return tmp_path


def run(command: list[str], folder: Path) -> str:
    """What a command prints in the folder, with the tools of this interpreter on the path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(CHECKOUT),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def document(name: str) -> str:
    return (CHECKOUT / name).read_text(encoding="utf-8")


def programs(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", document(name), flags=re.MULTILINE | re.DOTALL)


def test_programs_of_readme_and_the_python_page(folder: Path) -> None:
    """The registered model, the scorer, another prior and a benchmark, each as printed; no second database appears."""
    written = programs("README.md") + programs("docs/python.md")
    library = [program for program in written if "Searcher" not in program]  # tests/steps/test_searcher.py runs that
    printed = run([sys.executable, "-c", "\n".join(library)], folder)
    assert "absent.mp4 None None None missing_file" in printed
    assert list(folder.glob("*.db")) == []
