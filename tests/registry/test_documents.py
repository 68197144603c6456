"""The programs that the documents print run as they are printed."""

import os
import re
from pathlib import Path

import pytest

from tests.conftest import CHECKOUT, run_python
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


def programs(name: str) -> list[str]:
    text = (CHECKOUT / name).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_programs_of_readme_and_the_python_page(folder: Path) -> None:
    """The registered model, the scorer, another prior and a benchmark, each as printed; no second
    database appears."""
    written = programs("README.md") + programs("docs/python.md")
    library = [
        program for program in written if "Searcher" not in program
    ]  # tests/steps/test_searcher.py runs that
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")
    }
    printed = run_python("-c", "\n".join(library), cwd=folder, env=environment)
    assert "absent.mp4 None None None missing_file" in printed
    assert list(folder.glob("*.db")) == []
