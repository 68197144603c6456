"""The built wheel in an environment of its own, first with the extra `score`, then with `search`:
no torch, same answers."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hapvr.scorer.bundle import load_bundle
from hapvr.search.match import answer_values
from hapvr.steps.duplicate_pairs import duplicate_pairs, make_duplicate_pairs
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from tests.conftest import CHECKOUT
from tests.scorer.bundles import write_scenes
from tests.steps.search_projects import LONG, bundle_of, copied

pytestmark = pytest.mark.slow
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


def test_score_installs_nothing_that_trains_tracks_or_searches(slim: Path) -> None:
    installed = packages(slim)
    assert "hapvr" in installed
    assert installed & (LEFT_OUT | SEARCH_ADDS) == set()
    assert num_bytes(slim) < 450e6


def test_pairs_are_scored_as_by_the_full_installation(
    slim: Path, onnx_bundle: Path, scenes: Path, tmp_path: Path
) -> None:
    """16 pairs of real files."""
    files = [scenes / name for name in ("a.mp4", "b.mp4", "copy.mp4", "two.mp4")]
    expected = load_bundle(onnx_bundle).score_pairs(list(itertools.product(files, repeat=2)))
    names = tmp_path / "all.txt"
    names.write_text("\n".join(map(str, files)))
    pairs = answered(slim / "hapvr", "score", names, names, "--model", onnx_bundle)["pairs"]
    assert [(pair["query"], pair["reference"]) for pair in pairs] == [
        (row.query, row.reference) for row in expected
    ]
    assert [pair["similarity"] for pair in pairs] == pytest.approx(
        [row.similarity for row in expected], abs=1e-4
    )


def test_a_model_without_onnx_files_cannot_score(slim: Path, bundle: Path, scenes: Path) -> None:
    done = run(slim / "hapvr", "score", scenes / "a.mp4", scenes / "b.mp4", "--model", bundle)
    assert done.returncode == 2, done.stderr
    assert "has no ONNX files" in done.stderr, done.stderr


def test_a_url_wants_the_full_installation(slim: Path, onnx_bundle: Path, scenes: Path) -> None:
    url = "http://127.0.0.1:9/b.mp4"
    done = run(slim / "hapvr", "score", scenes / "a.mp4", url, "--model", onnx_bundle)
    assert f"unsupported: video: {url}: URLs need yt-dlp; install the rest" in done.stdout


@pytest.mark.parametrize(("verb", "extra"), [("serve", ".[search]"), ("train", ".[all]")])
def test_a_verb_that_is_not_installed_names_its_extra(
    slim: Path, tmp_path: Path, verb: str, extra: str
) -> None:
    """In one line, and no other extra that is not enough before it."""
    config = tmp_path / "config.yaml"
    config.write_text("name: x\n")
    done = run(slim / "hapvr", verb, "--config", config)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "is not installed; install" in done.stderr
    assert re.findall(r"pip install '(.+?)'", done.stderr)[0] == extra


@pytest.fixture(scope="module")
def searching(slim: Path) -> Path:
    """The same environment with the extra `search`; tests of `score` alone stand above those that
    ask for it."""
    (wheel,) = slim.parent.parent.glob("*.whl")
    install(slim / "python", wheel, "search")
    return slim


@dataclass(frozen=True)
class Indexed:
    """An index of the full installation, and what the slim one wants to read it."""

    project: Project
    full: Searcher
    clip: Path
    """a part of long.mp4"""
    config: tuple[object, ...]
    options: tuple[object, ...]
    """`config`, and a bundle with ONNX files of the index's model"""


@pytest.fixture(scope="module")
def indexed(searchable: Path, tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    folder = tmp_path_factory.mktemp("indexed")
    project = copied(searchable, folder)
    onnx = bundle_of(project, folder / "onnx", onnx=True)
    clip = write_scenes(folder / "clips" / "query.mp4", [500, 501, *LONG[25:31]])
    config = ("--config", project.folder / "config.yaml")
    return Indexed(project, Searcher.open(project), clip, config, (*config, "--model", onnx))


def test_search_installs_nothing_that_trains_or_tracks(searching: Path) -> None:
    installed = packages(searching)
    assert installed & LEFT_OUT == set()
    assert installed >= SEARCH_ADDS
    assert num_bytes(searching) < 950e6


def test_searches_answer_as_the_full_installation(searching: Path, indexed: Indexed) -> None:
    """For a file, and for a video of the collection."""
    full = indexed.full
    expected = answer_values([full.search(indexed.clip), full.search_id("in/short.mp4")])
    asked_for = (indexed.clip, "--id", "in/short.mp4")
    answers = answered(searching / "hapvr", "search", *asked_for, *indexed.options)["queries"]
    for of_full, of_slim in zip(expected, answers, strict=True):
        assert_same(of_full, of_slim)


def test_duplicates_are_those_of_the_full_installation(searching: Path, indexed: Indexed) -> None:
    project = indexed.project
    for key in indexed.full.indexed:
        make_duplicate_pairs(project, indexed.full, key)
    expected = duplicate_pairs(project, indexed.full, min_probability=0.5)
    shutil.rmtree(project.root.local_path("duplicate_pairs"))
    likely = ("--pairs", "--set", "search.min_duplicate_probability=0.5")
    pairs = answered(searching / "hapvr", "duplicates", *likely, *indexed.options)["pairs"]
    assert [(row["first"], row["second"], row["kind"]) for row in pairs] == [
        (pair.first, pair.second, pair.kind) for pair in expected
    ]
    assert [row["similarity"] for row in pairs] == pytest.approx(
        [pair.similarity for pair in expected], abs=1e-4
    )


@pytest.fixture(scope="module")
def address(searching: Path, indexed: Indexed) -> Iterator[str]:
    """That of a service of the slim installation."""
    with served(searching, *indexed.options) as address:
        yield address


def test_the_page_is_served(address: str) -> None:
    assert b"<title>" in asked(address)


def test_the_service_answers_as_the_full_installation(address: str, indexed: Indexed) -> None:
    part = "in/trips/part.mp4"
    answer = json.loads(asked(f"{address}/search", {"id": part}))["answer"]
    assert_same(answer_values([indexed.full.search_id(part)])[0], answer)


def test_pictures_are_served(address: str) -> None:
    assert asked(f"{address}/thumbnails/in/long.mp4?second=3")[:2] == b"\xff\xd8"


def test_a_folder_of_ones_own_is_indexed_and_searched(
    searching: Path, indexed: Indexed, tmp_path: Path
) -> None:
    """The file itself is what is found first."""
    data = ("--data", tmp_path / "own")
    added = answered(searching / "hapvr", "index", "add", indexed.clip.parent, *data)
    assert added["videos"] == 1
    assert added["unusable"] == []
    (answer,) = answered(searching / "hapvr", "search", indexed.clip, *data)["queries"]
    best = answer["matches"][0]
    assert best["reference"].endswith("/query.mp4")
    assert best["verdict"] == "match"


def test_an_index_of_a_model_without_onnx_files_is_not_searched(
    searching: Path, indexed: Indexed
) -> None:
    """In one line."""
    done = run(searching / "hapvr", "search", indexed.clip, *indexed.config)
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
