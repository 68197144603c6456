"""Every verb on a project that may only be read: what reads answers, what writes says in one
sentence where it cannot."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest

from hapvr.registry.champions import promote
from hapvr.search.marks import mark
from hapvr.steps.duplicate_groups import make_duplicate_groups
from hapvr.steps.duplicate_pairs import make_duplicate_pairs
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher
from hapvr.steps.training import tracker_of
from tests.commands.conftest import Outcome
from tests.commands.test_hostile_values import verbs
from tests.commands.test_models import write_published
from tests.conftest import MakeOnce, golden_similarities, run_python
from tests.scorer.bundles import write_scenes
from tests.serving.served import fill_collection
from tests.steps.search_projects import LONG, register_bundle

HEED_PERMISSIONS = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1  # see prctl(2) and capabilities(7)
if os.geteuid() == 0 and ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE):
    sys.exit("this process may not give up that permissions do not bind it")
os.execv(sys.executable, [sys.executable, "-m", "tests.commands.calls"])
"""
"""Permissions hold for a superuser's program as they do for everybody's."""

SHORT = "in/short.mp4"
COPY = "in/trips/copy of short.mp4"
CONFIG = ("--config", "config.yaml")
REGISTRY = ("--tracking-uri", "sqlite:///data/mlflow/mlflow.db")

READING: Mapping[tuple[str, ...], tuple[tuple[str, ...], str]] = {
    ("benchmarks", "list"): ((), "fivr-200k"),
    ("duplicates",): (CONFIG, "group"),
    ("evaluate",): (("--benchmark", "svd", "--similarities", "similarities.parquet"), "mAP"),
    ("index", "status"): (CONFIG, "holds    11 videos"),
    ("models", "list"): (REGISTRY, "champion"),
    ("models", "show"): (("models:/hapvr@champion", *REGISTRY), "test_resnet"),
    ("pairs", "list"): (CONFIG, "not-a-match"),
    ("pdq", "match"): (("hashes.txt", *CONFIG), "0 videos with a picture of hashes.txt"),
    ("score",): (("query.mp4", "query.mp4", *REGISTRY), "match"),
    ("search",): (("query.mp4", *CONFIG), "in/long.mp4"),
    ("serve",): ((*CONFIG, "--port", "0"), "Search: http://127.0.0.1"),
    ("status",): (CONFIG, "automation  has not run here"),
    ("verify",): (CONFIG, "ok"),
}
"""Arguments and a part of the answer."""

WRITING: Mapping[tuple[str, ...], tuple[tuple[str, ...], str]] = {
    ("benchmarks", "import"): (("vcdb", "vcdb", "--out", "imported-vcdb"), "imported-vcdb"),
    ("download",): (CONFIG, "/data"),
    ("extract",): (CONFIG, "/data"),
    ("features", "import"): (("features.hdf5", "--out", "data"), "/data"),
    ("forget",): (("in/long.mp4", *CONFIG, "--yes"), "/data"),
    ("index", "build"): ((*CONFIG, "--model", "bundle-0"), "/data"),
    ("index", "update"): (CONFIG, "/data"),
    ("models", "export"): (("exported", *REGISTRY), "exported"),
    ("models", "import"): (("published.pth", "--out", "imported"), "imported"),
    ("models", "pull"): (("bundle-0", *REGISTRY), "mlflow.db cannot be written"),
    ("models", "promote"): (("3", *REGISTRY), "mlflow.db cannot be written"),
    ("models", "rollback"): (REGISTRY, "mlflow.db cannot be written"),
    ("pairs", "import"): (("marks.csv", *CONFIG), "/data"),
    ("pdq", "export"): ((*CONFIG, "--out", "hashes.csv"), "hashes.csv"),
    ("run",): (("features", *CONFIG), "/data"),
    ("pairs", "mark"): ((SHORT, COPY, "match", *CONFIG), "/data"),
    ("pairs", "unmark"): (("in/long.mp4", SHORT, *CONFIG), "/data"),
    ("search",): (("query.mp4", *CONFIG, "--out", "found.csv"), "found.csv"),
    ("watch",): ((*CONFIG, "--set", "watch.lists=[{name: a, path: watched.txt}]"), "/data"),
}
"""Arguments that would have to write, and what the sentence names."""

LEFT_OUT = {
    ("sample",),
    ("train",),
    ("features", "labels"),
    ("models", "register"),
    ("models", "push"),
    ("index", "add"),
}
"""Stages whose data is finished, or missing, here; `download` and `extract` show what a stage says.
`index add` wants a data root of its own, `models push` a hub."""


@dataclass(frozen=True)
class ReadOnly:
    """A folder with a project that may only be read."""

    folder: Path

    def call(self, calls: list[list[str]]) -> list[Outcome]:
        """Call `hapvr` in a process whose home may only be read, too."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HAPVR_", "XDG_", "MLFLOW_"))
        }
        environment = kept | {"HOME": str(self.folder)}
        output = run_python(
            "-c", HEED_PERMISSIONS, input=json.dumps(calls), cwd=self.folder, env=environment
        )
        return [Outcome(*answer) for answer in json.loads(output)]


@pytest.fixture(scope="module")
def read_only(make_once: MakeOnce, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadOnly]:
    """A copy of the served collection with a registry, marks and groups."""
    collection_folder = make_once("served collection", fill_collection)
    folder = tmp_path_factory.mktemp("read-only")
    shutil.copytree(collection_folder, folder, dirs_exist_ok=True)
    config = folder / "config.yaml"
    config.write_text(
        config.read_text(encoding="utf-8").replace(str(collection_folder), str(folder)),
        encoding="utf-8",
    )
    project = Project.open(config, folder=folder)
    for _ in range(3):  # the first is the champion before, the last a challenger
        register_bundle(project, folder / "bundle-0")
    promote(tracker_of(project).client, "hapvr", 2, reason="as before")
    searcher = Searcher.open(project)
    long = searcher.collection.metadata.of("in/long.mp4").sha256
    short = searcher.collection.metadata.of(SHORT).sha256
    copy = searcher.collection.metadata.of(COPY).sha256
    mark(project.root, long, short, "not_a_match", names=("in/long.mp4", SHORT))
    mark(project.root, copy, short, "match", names=(COPY, SHORT))
    for key in searcher.collection.shards():
        make_duplicate_pairs(project, searcher, key)
    make_duplicate_groups(project, searcher)
    mark(project.root, long, copy, "not_a_match", names=("in/long.mp4", COPY))  # groups are older
    write_scenes(folder / "query.mp4", list(LONG[10:15]))
    (folder / "watched.txt").write_text("query.mp4\n")
    (folder / "marks.csv").write_text(f"first,second,verdict\n{long},{short},match\n")
    (folder / "hashes.txt").write_text("0" * 64)
    write_published(folder / "published.pth")
    annotations = folder / "vcdb" / "annotation"
    annotations.mkdir(parents=True)
    (annotations / "event.txt").write_text("a.flv,b.mp4,00:00:01,00:00:10,00:01:05,00:01:14\n")
    with h5py.File(folder / "features.hdf5", "w") as file:
        file["one"] = np.ones((3, 9, 32), np.float32)
    golden_similarities("svd_labeled_similarities_dev").write_parquet(
        folder / "similarities.parquet"
    )
    places = [folder, *folder.rglob("*")]
    for place in places:
        place.chmod(0o555 if place.is_dir() else 0o444)
    yield ReadOnly(folder)
    for place in places:  # so that pytest can remove it
        place.chmod(0o755 if place.is_dir() else 0o644)


def test_every_verb_is_in_a_table() -> None:
    assert {*READING, *WRITING, *LEFT_OUT} == set(verbs())


@pytest.mark.slow
def test_what_reads_answers_and_what_writes_names_the_place(read_only: ReadOnly) -> None:
    calls = [*READING.items(), *WRITING.items()]
    answers = read_only.call([[*words, *given] for words, (given, _) in calls])
    for (words, (_, wanted)), answer in zip(READING.items(), answers, strict=False):
        assert answer.code == 0, (words, answer)
        assert wanted in answer.out, (words, answer)
        assert "Downloading" not in answer.error, (words, answer)  # MLflow's bar

    for (words, (_, place)), answer in zip(WRITING.items(), answers[len(READING) :], strict=True):
        assert answer.code == 1, (words, answer)
        sentence = answer.error.splitlines()[-1]
        assert sentence.startswith("error: "), (words, answer)
        assert "unexpected " not in sentence, (words, answer)
        assert place in sentence, (words, answer)
