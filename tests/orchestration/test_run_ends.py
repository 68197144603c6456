"""What is left of a run in its process."""

import multiprocessing
from pathlib import Path

import dagster as dg
import pytest

from assets.project import ProjectResource
from assets.videos import frames
from hapvr.data.manifest import training_shard_keys
from hapvr.steps.project import Project
from hapvr.video.kept_workers import end_idle_workers
from tests.steps.search_projects import copied_project


@pytest.mark.slow
def test_a_run_leaves_no_decoders(small_project: Project, tmp_path: Path) -> None:
    """They wait for more work; Dagster executes a run in a process that waits for its children."""
    project = copied_project(small_project, tmp_path)
    (shard, *_) = training_shard_keys(project.root)
    resource = ProjectResource(
        config_path="config.yaml",
        folder=str(project.folder),
        overrides={"sampling.fps": "2"},
    )
    end_idle_workers()
    before = set(multiprocessing.active_children())
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("shards", [shard])
        result = dg.materialize(
            [frames], instance=instance, resources={"project": resource}, partition_key=shard
        )

    assert result.asset_materializations_for_node("frames")
    assert set(multiprocessing.active_children()) <= before
