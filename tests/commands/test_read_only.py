"""Every verb on a project that may only be read: what reads answers, what writes says in one sentence where it cannot."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from hapvr.search.marks import mark_pair
from hapvr.stages.duplicates import make_duplicate_groups
from hapvr.stages.project import Project
from hapvr.stages.searcher import Searcher
from tests.commands.conftest import Outcome
from tests.commands.test_hostile_values import verbs
from tests.conftest import CHECKOUT, MakeOnce, golden_similarities
from tests.scorer.bundles import write_scenes
from tests.serving.served import fill_collection
from tests.stages.search_projects import LONG, register_bundle

NOBODY = 65534
SHORT, COPY = "in/short.mp4", "in/trips/copy of short.mp4"
CONFIG = ("--config", "config.yaml")
REGISTRY = ("--tracking-uri", "sqlite:///data/mlflow/mlflow.db")

READING: Mapping[tuple[str, ...], tuple[tuple[str, ...], str]] = {
    ("benchmarks", "list"): ((), "fivr-200k"),
    ("benchmarks", "show"): (("svd",), "svd"),
    ("duplicates",): (CONFIG, "group"),
    ("evaluate",): (("--benchmark", "svd", "--similarities", "similarities.parquet"), "mAP"),
    ("features", "stats"): (CONFIG, "num_videos: 10"),
    ("features", "verify"): (CONFIG, "ok"),
    ("index", "status"): (CONFIG, "holds    10 videos"),
    ("index", "verify"): ((*CONFIG, "--probes", "5"), "found themselves"),
    ("models", "card"): (("champion", *REGISTRY), "# The card"),
    ("models", "lineage"): (("champion", *REGISTRY), "version 1"),
    ("models", "list"): (REGISTRY, "champion"),
    ("models", "show"): (("models:/hapvr@champion", *REGISTRY), "resnet18"),
    ("pairs", "list"): (CONFIG, "not-a-match"),
    ("score",): (("query.mp4", "query.mp4", *REGISTRY), "match"),
    ("search",): (("query.mp4", *CONFIG), "in/long.mp4"),
    ("serve",): ((*CONFIG, "--port", "0"), "Search: http://127.0.0.1"),
    ("verify",): (CONFIG, "ok"),
}
"""Arguments and a part of the answer."""

WRITING: Mapping[tuple[str, ...], tuple[tuple[str, ...], str]] = {
    ("benchmarks", "make"): (("--videos", "videos", "--out", "made"), "made"),
    ("benchmarks", "show"): (("svd", "--out", "data/queries.csv"), "data/queries.csv"),
    ("download",): ((*CONFIG, "--set", "shard_videos=3"), "data"),
    ("duplicates",): ((*CONFIG, "--min-probability", "0.99"), "data"),
    ("evaluate",): (
        ("--benchmark", "svd", "--features", "data", "--model", "bundle-0/network", "--out", "data/x.parquet"),
        "data",
    ),
    ("extract",): (CONFIG, "data"),
    ("features", "import"): (("features.hdf5", *CONFIG), "data"),
    ("index", "build"): ((*CONFIG, "--model", "bundle-0"), "data"),
    ("index", "update"): ((*CONFIG, "--set", "search.index.code_bits=4"), "data"),
    ("models", "import"): (("network.pth", "--out", "imported"), "imported"),
    ("models", "promote"): (("2", *REGISTRY), "mlflow.db"),
    ("models", "rollback"): (REGISTRY, "mlflow.db"),
    ("pairs", "benchmark"): (CONFIG, "data"),
    ("pairs", "mark"): ((SHORT, COPY, "match", *CONFIG), "data"),
    ("pairs", "unmark"): (("in/long.mp4", SHORT, *CONFIG), "data"),
    ("sample",): ((*CONFIG, "--set", "sampling.fps=2"), "data"),
    ("search",): (("query.mp4", *CONFIG, "--out", "data/found.csv"), "data/found.csv"),
    ("train",): (CONFIG, "data"),
    ("verify",): ((*CONFIG, "--repair"), "data"),
    ("watch",): ((*CONFIG, "--set", "watch.lists=[{name: a, path: query.mp4}]"), "data"),
}
"""Arguments that would have to write, and the place that the sentence names."""


@dataclass(frozen=True)
class ReadOnly:
    """A folder with a project that its user may only read."""

    folder: Path

    def call(self, calls: list[list[str]]) -> list[Outcome]:
        """Call `hapvr` as that user, whose home does not exist."""
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HAPVR_", "XDG_", "MLFLOW_"))}
        done = subprocess.run(
            [sys.executable, "-m", "tests.commands.calls"],
            input=json.dumps(calls),
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=kept | {"PYTHONPATH": str(CHECKOUT), "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
            timeout=600,
            check=False,
            **user,  # type: ignore[arg-type]
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return [Outcome(*answer) for answer in json.loads(done.stdout)]


def may_read(place: Path) -> bool:
    """Whether the user who makes the calls reaches a folder."""
    return os.geteuid() != 0 or all(os.stat(one).st_mode & stat.S_IXOTH for one in (place, *place.parents))


@pytest.fixture(scope="module")
def read_only(make_once: MakeOnce) -> Iterator[ReadOnly]:
    """A copy of the served collection with a registry, marks and groups."""
    for place in (CHECKOUT, Path(sys.prefix)):
        if not may_read(place):
            pytest.skip(f"{place} cannot be read by another user than root")
    made = make_once("served collection", fill_collection)
    folder = Path(tempfile.mkdtemp(prefix="hapvr-read-only-"))
    try:
        shutil.copytree(made, folder, dirs_exist_ok=True)
        config = folder / "config.yaml"
        config.write_text(config.read_text(encoding="utf-8").replace(str(made), str(folder)), encoding="utf-8")
        project = Project.open(config, folder=folder)
        register_bundle(project, folder / "bundle-0")
        searcher = Searcher.open(project)
        long, short = (searcher.facts.of(name).sha256 for name in ("in/long.mp4", SHORT))
        mark_pair(project.root, long, short, "not_a_match", names=("in/long.mp4", SHORT))
        make_duplicate_groups(project, searcher, min_probability=project.config.search.duplicates.min_probability)
        write_scenes(folder / "query.mp4", list(LONG[10:15]))
        golden_similarities("svd_labeled_similarities_dev").write_parquet(folder / "similarities.parquet")
        for place in (folder, *folder.rglob("*")):
            place.chmod(0o555 if place.is_dir() else 0o444)
        yield ReadOnly(folder)
    finally:
        for place in (folder, *(one for one in folder.rglob("*") if one.is_dir())):
            place.chmod(0o755)
        shutil.rmtree(folder)


def test_every_verb_is_in_a_table() -> None:
    assert {*READING, *WRITING} == set(verbs())


def test_what_only_reads_answers(read_only: ReadOnly) -> None:
    answers = read_only.call([[*words, *given] for words, (given, _) in READING.items()])
    for (words, (_, wanted)), answer in zip(READING.items(), answers, strict=True):
        assert answer.code == 0, (words, answer)
        assert wanted in answer.out, (words, answer)


def test_what_writes_names_the_place(read_only: ReadOnly) -> None:
    answers = read_only.call([[*words, *given] for words, (given, _) in WRITING.items()])
    for (words, (_, place)), answer in zip(WRITING.items(), answers, strict=True):
        assert answer.code == 1, (words, answer)
        (sentence,) = answer.error.splitlines()
        assert sentence.startswith("error: "), (words, answer)
        assert "unexpected " not in sentence, (words, answer)
        assert place in sentence, (words, answer)
