"""What Dagster loads: names that users build on."""

from __future__ import annotations

import dagster as dg
import yaml

from pipelines.chain import STAGES
from pipelines.definitions import defs
from tests.conftest import CHECKOUT

ASSETS = {
    "video_manifest": ("ingest", None),
    "videos": ("ingest", "shards"),
    "frames": ("ingest", "shards"),
    "whitening": ("features", None),
    "features": ("features", "shards"),
    "training_views": ("training", "training_shards"),
    "pseudo_labels": ("training", "training_shards"),
    "similarity_model": ("training", None),
    "benchmark_scores": ("evaluation", "benchmarks"),
    "registered_model": ("registry", None),
}


def test_asset_keys_groups_and_partitions_are_stable() -> None:
    """The ten assets, their groups and partitions: renaming one breaks users' schedules and links."""
    graph = defs.resolve_asset_graph()
    found = {}
    for key in graph.get_all_asset_keys():
        partitions = graph.get(key).partitions_def
        name = partitions.name if isinstance(partitions, dg.DynamicPartitionsDefinition) else None
        found[key.to_user_string()] = (graph.get(key).group_name, name)
    assert found == ASSETS


def test_jobs_are_stable_and_retrain_may_be_retried() -> None:
    """demo does everything; retrain goes from views to registry and carries the retry tags."""
    jobs = {job.name: job for job in defs.resolve_all_job_defs() if not job.name.startswith("__")}
    assert set(jobs) == {"demo", "retrain"}
    assert [node.name for node in jobs["demo"].nodes_in_topological_order] == [
        f"materialize_{stage.asset}" for stage in STAGES
    ]
    assert len(jobs["retrain"].nodes_in_topological_order) == 5
    assert jobs["retrain"].tags["dagster/max_retries"] == "2"


def test_every_asset_is_described_and_upstream_first_in_the_chain() -> None:
    """A newcomer reads the graph: each asset says what it is; the chain's order is the graph's."""
    graph = defs.resolve_asset_graph()
    order = [stage.asset for stage in STAGES]
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert node.description
        for parent in node.parent_keys:
            assert order.index(parent.to_user_string()) < order.index(key.to_user_string())


def test_workspace_points_at_the_definitions() -> None:
    """workspace.yaml names the file and attribute that exist."""
    (entry,) = yaml.safe_load((CHECKOUT / "workspace.yaml").read_text())["load_from"]
    assert entry["python_file"]["relative_path"] == "pipelines/definitions.py"
    assert entry["python_file"]["attribute"] == "defs"
