"""One look at a project, by which all steps judge."""

from pathlib import Path

from hapvr.chain import CHAIN
from hapvr.chain.look import Look
from hapvr.data.manifest import read_manifest_shard, shard_keys, write_manifest_shard
from hapvr.steps.project import Project
from tests.steps.search_projects import copied_project

SHARD_STEPS = ("frames", "features", "training_views", "pseudo_labels")


def test_a_shard_that_is_added_during_a_look_is_for_the_next_one(
    small_project: Project, tmp_path: Path
) -> None:
    """As a manifest that grows while automation asks one step after the other."""
    project = copied_project(small_project, tmp_path)
    look = Look(project)
    CHAIN["frames"].lacks(look)
    (key, *_) = shard_keys(project.root)
    added = f"{key.rpartition('-')[0]}-00099"
    write_manifest_shard(project.root, added, read_manifest_shard(project.root, key))
    for name in SHARD_STEPS:
        asked = CHAIN[name].lacks(look)
        assert asked is not None
        assert added not in asked
        assert CHAIN[name].status(look).step == name

    assert added not in look.keys
    assert added in Look(project).keys
