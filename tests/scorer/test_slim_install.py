"""The built wheel with the extra `score` in an environment of its own: no torch, and the same answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hapvr.scorer.bundle import load_bundle
from tests.scorer.bundles import make_bundle

CHECKOUT = Path(__file__).resolve().parent.parent.parent
UV = [sys.executable, str(CHECKOUT / ".ci" / "uv.py")]
LEFT_OUT = {"torch", "torchvision", "timm", "lightning-fabric", "dagster", "mlflow", "pyarrow", "polars", "openvino"}


@pytest.fixture(scope="module")
def slim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of the environment; skipped where the package registry cannot be reached."""
    folder = tmp_path_factory.mktemp("slim")
    source = folder / "source"
    ignored = shutil.ignore_patterns(".*", "data", "build", "*.egg-info", "tests", "site", "__pycache__")
    shutil.copytree(CHECKOUT, source, ignore=ignored)
    build = [*UV, "build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(folder)]
    subprocess.run([*build, str(source)], capture_output=True, text=True, check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*UV, "venv", "--python", sys.executable, str(folder / "venv")], capture_output=True, check=True)
    python = folder / "venv" / "bin" / "python"
    install = [*UV, "pip", "install", "--python", str(python), f"{wheel}[score]"]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        if any(said in done.stderr for said in ("Failed to fetch", "error sending request", "network connectivity")):
            pytest.skip(f"the package registry cannot be reached: {done.stderr.splitlines()[0][:200]}")
        pytest.fail(done.stderr)
    return python.parent


def run(command: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A command outside the checkout, with none of its variables."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MLFLOW"))}
    words = [str(command), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=command.parent)


@pytest.mark.slow
def test_the_slim_installation_scores_as_the_full_one(slim: Path, scenes: Path, tmp_path: Path) -> None:
    """Similarities of 16 pairs of real files within 1e-4; nothing that trains, tracks or orchestrates is installed."""
    listed = subprocess.run(
        [*UV, "pip", "list", "--format", "json", "--python", str(slim / "python")], capture_output=True, check=True
    )
    installed = {package["name"] for package in json.loads(listed.stdout)}
    assert "hapvr" in installed
    assert installed & LEFT_OUT == set()
    assert sum(file.stat().st_size for file in slim.parent.rglob("*") if not file.is_symlink()) < 400e6
    folder = make_bundle(tmp_path, onnx=True)
    names = ["a.mp4", "b.mp4", "copy.mp4", "two.mp4"]
    wanted = load_bundle(folder).score_pairs([(scenes / one, scenes / other) for one in names for other in names])
    (tmp_path / "all.txt").write_text("\n".join(str(scenes / name) for name in names))
    done = run(slim / "hapvr", "score", tmp_path / "all.txt", tmp_path / "all.txt", "--model", folder, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["pairs"]
    assert [(pair["query"], pair["reference"]) for pair in found] == [(row.query, row.reference) for row in wanted]
    for pair, row in zip(found, wanted, strict=True):
        assert pair["similarity"] == pytest.approx(row.similarity, abs=1e-4)


@pytest.mark.slow
def test_the_slim_installation_says_what_it_cannot_do(slim: Path, bundle: Path, scenes: Path, tmp_path: Path) -> None:
    """A bundle without ONNX files, a changed file, and verbs that need the rest: one sentence, no traceback."""
    clips = [scenes / "a.mp4", scenes / "b.mp4"]
    done = run(slim / "hapvr", "score", *clips, "--model", bundle)
    assert done.returncode == 2
    assert "has no ONNX files" in done.stderr
    assert "pip install 'hapvr[all]'" in done.stderr
    (tmp_path / "config.yaml").write_text("name: x\n")
    for words in (["train"], ["extract"], ["search", clips[0]], ["serve"], ["models", "list"]):
        needs_config = words[0] != "models"
        options = ["--config", tmp_path / "config.yaml"] if needs_config else ["--tracking-uri", "http://127.0.0.1:9"]
        done = run(slim / "hapvr", *words, *options)
        assert done.returncode in (1, 2), words
        assert "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        if needs_config:
            assert done.returncode == 2, (words, done.stderr)
            assert "which is not installed; install the rest with `pip install 'hapvr[all]'`" in done.stderr
