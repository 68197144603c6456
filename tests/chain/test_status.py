"""How far steps are, by what is stored."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from hapvr.automation import AutomationConfig
from hapvr.chain import CHAIN, chain_status
from hapvr.chain.step import shards_of
from hapvr.collection import add_folders, update_collection
from hapvr.progress import Progress, no_progress
from hapvr.search.duplicates import GROUPS_PLACE
from hapvr.steps.project import Project
from hapvr.steps.shard_rows import rows_place
from tests.conftest import write_clip
from tests.networks.copy_package import needs_copies


def no_bar(_: str) -> nullcontext[Progress]:
    return nullcontext(no_progress)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A collection of one video, with an index, in which duplicates are looked for."""
    write_clip(tmp_path / "clips" / "a.mp4", seed=0, seconds=1)
    added = add_folders(tmp_path / "root", [tmp_path / "clips"])
    update_collection(added, no_bar)
    looking = AutomationConfig(duplicates=True)
    config = added.config.model_copy(update={"automation": looking})
    return Project(config, added.root, added.folder)


def progress_of(project: Project, step: str) -> tuple[int, int]:
    """How many of its shards are done, and how many are missing."""
    (status,) = (status for status in chain_status(project) if status.step == step)
    return status.done, status.missing


@pytest.mark.parametrize("step", ["frame_descriptors", "search_index"])
def test_an_index_that_lacks_nothing_is_done(project: Project, step: str) -> None:
    assert progress_of(project, step) == (1, 0)


def test_an_index_is_not_done_while_shards_are_not_described(project: Project) -> None:
    (record,) = Path(project.root.url).glob("search/*/descriptors/*/index.parquet")
    record.unlink()
    assert progress_of(project, "frame_descriptors") == (0, 1)
    assert progress_of(project, "search_index") == (0, 0)


@needs_copies  # a search that is not sure of anything looks for no pairs
def test_groups_are_not_done_while_pairs_are_missing(project: Project) -> None:
    """They are missing once the pairs are there, and then done."""
    pairs = CHAIN["duplicate_pairs"]
    groups = CHAIN["duplicate_groups"]
    (key,) = shards_of(project, pairs)
    for place in (rows_place(pairs.name, key), GROUPS_PLACE):
        project.root.delete(place)
    assert progress_of(project, groups.name) == (0, 0)
    pairs.run(project, key)
    assert progress_of(project, groups.name) == (0, 1)
    groups.run(project)
    assert progress_of(project, groups.name) == (1, 0)
