"""The built wheel in an environment of its own, first with the extra `score`, then with `search`:
no torch, same answers."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hapvr.scorer.bundle import load_bundle
from hapvr.search.match import answer_values
from hapvr.steps.duplicate_pairs import duplicate_pairs, make_duplicate_pairs
from hapvr.steps.searcher import Searcher
from tests.conftest import CHECKOUT
from tests.scorer.bundles import write_scenes
from tests.steps.search_projects import LONG, bundle_of, copied

UV = [sys.executable, str(CHECKOUT / ".ci" / "uv.py")]
LEFT_OUT = {
    "torch",
    "torchvision",
    "timm",
    "lightning-fabric",
    "dagster",
    "mlflow",
    "matplotlib",
    "polars",
}
SEARCH_ADDS = {"pyarrow", "pylance", "fastapi", "pyyaml"}


def install(python: Path, wheel: Path, extra: str) -> None:
    """Skips the test where the package registry cannot be reached."""
    command = [*UV, "pip", "install", "--python", str(python), f"{wheel}[{extra}]"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        if any(
            said in done.stderr
            for said in ("Failed to fetch", "error sending request", "network connectivity")
        ):
            pytest.skip(
                f"the package registry cannot be reached: {done.stderr.splitlines()[0][:200]}"
            )

        pytest.fail(done.stderr)


@pytest.fixture(scope="module")
def slim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of the environment, with the extra `score`."""
    folder = tmp_path_factory.mktemp("slim")
    source = folder / "source"
    for package in ("hapvr", "assets", "pipelines"):
        shutil.copytree(
            CHECKOUT / package, source / package, ignore=shutil.ignore_patterns("__pycache__")
        )

    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(CHECKOUT / name, source)
    build = [
        *UV,
        "build",
        "--wheel",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--out-dir",
        str(folder),
    ]
    subprocess.run([*build, str(source)], capture_output=True, text=True, check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run(
        [*UV, "venv", "--python", sys.executable, str(folder / "venv")],
        capture_output=True,
        check=True,
    )
    python = folder / "venv" / "bin" / "python"
    install(python, wheel, "score")
    return python.parent


def packages(bin_folder: Path) -> set[str]:
    command = [*UV, "pip", "list", "--format", "json", "--python", str(bin_folder / "python")]
    listed = subprocess.run(command, capture_output=True, check=True)
    return {package["name"] for package in json.loads(listed.stdout)}


def num_bytes(bin_folder: Path) -> int:
    return sum(
        file.stat().st_size for file in bin_folder.parent.rglob("*") if not file.is_symlink()
    )


def environment() -> dict[str, str]:
    """That of this process without what would lead back to the checkout."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "MLFLOW"))
    }


def run(command: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A command outside the checkout."""
    words = [str(command), *map(str, arguments)]
    return subprocess.run(
        words, capture_output=True, text=True, check=False, env=environment(), cwd=command.parent
    )


def answered(command: Path, *arguments: object) -> Any:
    """The JSON that a verb prints."""
    done = run(command, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def served(bin_folder: Path, *options: object) -> Iterator[str]:
    """The address of `hapvr serve` with these options."""
    words = [str(bin_folder / "hapvr"), "serve", "--port", "0", "--json", *map(str, options)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env=environment(), cwd=bin_folder
    ) as server:
        try:
            yield json.loads(server.stdout.readline())["address"]
        finally:
            server.terminate()


def asked(address: str, values: dict[str, Any] | None = None) -> bytes:
    body = None if values is None else json.dumps(values).encode()
    request = urllib.request.Request(
        address, data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        content: bytes = answer.read()
    return content


@pytest.mark.slow
def test_the_slim_installation_scores_as_the_full_one(
    slim: Path, bundle: Path, onnx_bundle: Path, scenes: Path, tmp_path: Path
) -> None:
    """Similarities of 16 pairs of real files within 1e-4; nothing that trains, tracks or
    orchestrates is installed, which is said in one sentence."""
    installed = packages(slim)
    assert "hapvr" in installed
    assert installed & (LEFT_OUT | SEARCH_ADDS) == set()
    assert num_bytes(slim) < 450e6
    names = ["a.mp4", "b.mp4", "copy.mp4", "two.mp4"]
    wanted = load_bundle(onnx_bundle).score_pairs(
        [(scenes / one, scenes / other) for one in names for other in names]
    )
    (tmp_path / "all.txt").write_text("\n".join(str(scenes / name) for name in names))
    all_names = tmp_path / "all.txt"
    scored_pairs = answered(slim / "hapvr", "score", all_names, all_names, "--model", onnx_bundle)[
        "pairs"
    ]
    assert [(pair["query"], pair["reference"]) for pair in scored_pairs] == [
        (row.query, row.reference) for row in wanted
    ]
    for pair, row in zip(scored_pairs, wanted, strict=True):
        assert pair["similarity"] == pytest.approx(row.similarity, abs=1e-4)
    clips = [scenes / "a.mp4", scenes / "b.mp4"]
    done = run(slim / "hapvr", "score", *clips, "--model", bundle)
    assert done.returncode == 2, done.stderr
    assert "has no ONNX files" in done.stderr, done.stderr
    done = run(
        slim / "hapvr", "score", clips[0], "http://127.0.0.1:9/b.mp4", "--model", onnx_bundle
    )
    assert (
        "unsupported: video: http://127.0.0.1:9/b.mp4: URLs need yt-dlp; install the rest"
        in done.stdout
    )
    (tmp_path / "config.yaml").write_text("name: x\n")
    for verb, extra in (("serve", ".[search]"), ("train", ".[all]")):
        done = run(slim / "hapvr", verb, "--config", tmp_path / "config.yaml")
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert "is not installed; install" in done.stderr
        assert f"pip install '{extra}'" in done.stderr


@pytest.fixture(scope="module")
def searching(slim: Path) -> Path:
    """The same environment with the extra `search`; tests of `score` alone stand above those that
    ask for it."""
    (wheel,) = slim.parent.parent.glob("*.whl")
    install(slim / "python", wheel, "search")
    return slim


@pytest.mark.slow
def test_the_slim_installation_searches_as_the_full_one(
    searching: Path, searchable: Path, tmp_path: Path
) -> None:
    """An index of the full installation: matches, segments, pairs and the service's answer are
    those of torch; and a folder of one's own is indexed and searched."""
    assert packages(searching) & LEFT_OUT == set()
    assert packages(searching) >= SEARCH_ADDS
    assert num_bytes(searching) < 950e6
    project = copied(searchable, tmp_path)
    onnx = bundle_of(project, tmp_path / "onnx", onnx=True)
    clip = write_scenes(tmp_path / "clips" / "query.mp4", [500, 501, *LONG[25:31]])
    full = Searcher.open(project)
    wanted = answer_values([full.search(clip), full.search_id("in/short.mp4")])
    options = ["--config", project.folder / "config.yaml"]
    hapvr = searching / "hapvr"
    here = [*options, "--model", onnx]
    answers = answered(hapvr, "search", clip, "--id", "in/short.mp4", *here)["queries"]
    for expected, actual in zip(wanted, answers, strict=True):
        assert_same(expected, actual)
    for key in full.indexed:
        make_duplicate_pairs(project, full, key)
    pairs = duplicate_pairs(project, full, min_probability=0.5)
    shutil.rmtree(project.root.local_path("duplicate_pairs"))
    told = answered(
        hapvr, "duplicates", "--pairs", "--set", "search.min_duplicate_probability=0.5", *here
    )["pairs"]
    assert [(row["first"], row["second"], row["kind"]) for row in told] == [
        (pair.first, pair.second, pair.kind) for pair in pairs
    ]
    assert [row["similarity"] for row in told] == pytest.approx(
        [pair.similarity for pair in pairs], abs=1e-4
    )
    with served(searching, *here) as address:
        assert b"<title>" in asked(address)
        answer = json.loads(asked(f"{address}/search", {"id": "in/trips/part.mp4"}))["answer"]
        assert_same(answer_values([full.search_id("in/trips/part.mp4")])[0], answer)
        assert asked(f"{address}/thumbnails/in/long.mp4?second=3")[:2] == b"\xff\xd8"

    added = answered(hapvr, "index", "add", clip.parent, "--data", tmp_path / "own")
    assert added["videos"] == 1
    assert added["unusable"] == []
    best = answered(hapvr, "search", clip, "--data", tmp_path / "own")["queries"][0]["matches"][0]
    assert best["reference"].endswith("/query.mp4")
    assert best["verdict"] == "match"
    done = run(hapvr, "search", clip, *options)
    assert done.returncode == 2
    assert "bundle-0 has no ONNX files" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def assert_same(wanted: dict[str, Any], found: dict[str, Any]) -> None:
    """Two answers, but for their times."""
    assert wanted["matches"]
    assert [match["reference"] for match in found["matches"]] == [
        match["reference"] for match in wanted["matches"]
    ]
    for expected, actual in zip(wanted["matches"], found["matches"], strict=True):
        assert actual["similarity"] == pytest.approx(expected["similarity"], abs=1e-4)
        assert actual["probability"] == pytest.approx(expected["probability"], abs=1e-3)
        assert len(actual["segments"]) == len(expected["segments"])
        for part, same in zip(expected["segments"], actual["segments"], strict=True):
            assert same == pytest.approx(part, abs=1e-4)
