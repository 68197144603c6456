"""kill -9 at any moment of a build or an update of the index: what answers is whole, and the next
update ends as a calm one."""

import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hapvr.search.current import CURRENT, current_index
from hapvr.search.frame_index import FrameIndex
from hapvr.search.lance_index import LanceIndex
from hapvr.steps.project import Project
from tests.conftest import small_settings, write_settings
from tests.steps.kills import finish, kill_after, kill_often
from tests.steps.search_projects import copied_project, network_folder

pytestmark = pytest.mark.slow

SEARCH = {"index": {"min_indexed_rows": 64, "code_bits": 5, "probed_lists": 64, "refine_factor": 8}}
Answers = dict[str, list[tuple[str, float, float]]]


@dataclass
class Updates:
    """Two configurations whose indexes differ in every shard. seconds: of a calm update."""

    project: Project
    configs: dict[str, Path]
    calm: dict[str, Answers]
    held: dict[str, Counter[str]]
    seconds: float

    def index(self) -> FrameIndex:
        return current_index(self.project.root).open(self.project.root, self.project.config.search)


def queries() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((8, 32))


def answers(index: FrameIndex) -> Answers:
    """What the index says to some queries, without the order of frames that are equally near."""
    matches: Answers = {}
    for row in index.search_frames(queries(), 10).to_pylist():
        match = (row["video_id"], round(row["second"], 2), round(row["similarity"], 3))
        matches.setdefault(str(row["query_frame"]), []).append(match)

    return {number: sorted(rows) for number, rows in matches.items()}


@pytest.fixture(scope="module")
def updates(small_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Updates:
    folder = tmp_path_factory.mktemp("search-kills")
    project = copied_project(small_project, folder, **SEARCH)
    network_folder(folder)
    videos = project.path(project.config.sources[0].path)
    configs = {}
    for name in ("all", "fewer"):
        settings = small_settings(videos, folder / "data") | {"search": SEARCH}
        configs[name] = write_settings(folder / f"{name}.yaml", settings)

    calm_updates = Updates(project, configs, {}, {}, 0.0)
    for name, config in configs.items():
        calm_updates.seconds = finish(config, "index")
        calm_updates.calm[name] = answers(calm_updates.index())
        calm_updates.held[name] = frames_of(calm_updates.index())

    return calm_updates


def frames_of(index: FrameIndex) -> Counter[str]:
    """How many frames the index has of each shard."""
    assert isinstance(index, LanceIndex)
    return Counter(index._table.to_table(columns=["shard"])["shard"].to_pylist())


def check_whole(updates: Updates) -> None:
    """Every shard of the index that answers is wholly there, as one of the two configurations has
    it."""
    if not updates.project.root.exists(CURRENT):
        return
    index = updates.index()
    status = index.status()
    assert status.shards.keys() == frames_of(index).keys()
    for key, count in frames_of(index).items():
        assert count in {updates.held[name][key] for name in updates.configs}
    assert len(index.search_frames(queries(), 10)) == 80


@pytest.mark.parametrize("kind", ["build", "update"])
def test_a_killed_index_is_whole_and_ends_as_a_calm_one(updates: Updates, kind: str) -> None:
    """Kills at random times, of builds from nothing and of updates that replace every shard."""
    rng = random.Random(kind)
    wanted = "all"

    def remove() -> None:
        shutil.rmtree(updates.project.root.local_path("search"))

    def after_end() -> None:
        nonlocal wanted
        check_whole(updates)
        assert answers(updates.index()) == updates.calm[wanted]
        if kind == "build":
            remove()
        else:
            wanted = "fewer" if wanted == "all" else "all"

    if kind == "build":
        remove()
    kill_often(
        lambda: (updates.configs[wanted], "index"),
        kill=lambda process, _: kill_after(process, rng.uniform(0, updates.seconds)),
        after_kill=lambda: check_whole(updates),
        after_end=after_end,
    )
