"""A filled index, to be read or to be changed."""

import shutil
from pathlib import Path

import pytest

from hapvr.search.lance_index import LanceIndex
from tests.search.exact import DIMS, SMALL, ExactIndex, descriptors


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExactIndex]:
    """An index of 1,200 frames in three shards, two thirds of them indexed, and the exact one."""
    folder = tmp_path_factory.mktemp("index")
    exact = ExactIndex()
    index = LanceIndex.create(folder, DIMS, {"model": "a"}, SMALL)
    for number, shard in enumerate(("a", "b", "c")):
        rows = descriptors([f"{shard}/{video}.mp4" for video in range(50)], seed=number)
        index.replace_shard(shard, rows, digest=shard)
        exact.replace_shard(shard, rows)
        if shard == "b":
            index.optimise()

    return folder, exact


@pytest.fixture
def copy(
    filled: tuple[Path, ExactIndex], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, ExactIndex]:
    """A copy of it that a test may change, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(filled[0], tmp_path / "index")
    return tmp_path / "index", filled[1]
