"""The stage that scores benchmarks: which videos count under the policy of the configuration."""

from pathlib import Path

import polars as pl
import pytest

from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.benchmark.protocol import evaluate
from hapvr.data.manifest import VIDEO_COLUMNS, read_availability, shard_keys
from hapvr.errors import ConfigError, DataError
from hapvr.model.checkpoint import save_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.seeding import torch_rng
from hapvr.steps.benchmark_features import stored_ids
from hapvr.steps.evaluation import (
    make_benchmark_scores,
    stored_scores,
)
from hapvr.steps.project import Project
from hapvr.steps.sources import benchmark_folder
from hapvr.steps.training import prepare_training, tracker_of
from tests.conftest import write_settings
from tests.steps.search_projects import copied


@pytest.mark.parametrize("wrong", [{"target_metrics": ["mAP"]}, {"gate": {"required_metrics": ["mAP"]}}])
def test_wrong_metrics_are_found_before_there_is_a_run(
    small_project: Project, tmp_path: Path, wrong: dict[str, object]
) -> None:
    """Not by the gate, after the training."""
    settings = small_project.config.model_dump(mode="json")
    settings["evaluation"] |= wrong
    project = Project.open(write_settings(tmp_path / "config.yaml", settings), folder=small_project.folder)
    tracker = tracker_of(project)
    before = len(tracker.client.search_runs([tracker.experiment_id]))
    with pytest.raises(ConfigError, match=r"evaluation.*mAP"):
        prepare_training(project, "wrong", tags={})
    assert len(tracker.client.search_runs([tracker.experiment_id])) == before
    assert not project.root.local_path("models/wrong").exists()


def test_frozen_policy_counts_the_videos_of_the_availability_manifest(small_project: Project, tmp_path: Path) -> None:
    """A reference that could not be had is out of the ranking, though it has features; ingest wrote who could be had."""
    strict = copied(small_project.folder, tmp_path)
    frozen = Project.open(tmp_path / "config.yaml", folder=tmp_path, overrides={"evaluation.policy": "frozen"})
    run = prepare_training(strict, "frozen", tags={})
    save_network(
        SimilarityNetwork(NetworkSettings(), dims=32, generator=torch_rng("frozen")), run.network_folder, metadata={}
    )
    before = make_benchmark_scores(strict, run, "own-test")
    manifest = read_availability(frozen.root, "own-test")
    assert set(manifest["status"]) == {"ok"}
    # All could be had: both policies say the same.
    assert make_benchmark_scores(frozen, run, "own-test").target_means == before.target_means

    definition = load_definition(str(benchmark_folder(frozen, "own-test")))
    relevant = definition.labels.filter(~pl.col("reference_id").is_in(definition.queries))["reference_id"][0]
    statuses = dict(manifest.select("video_id", "status").iter_rows())
    lost = next(video for video in statuses if relevant in stored_ids(definition, [video]))
    shards = [key for key in shard_keys(frozen.root) if key.startswith("own-test-")]
    for key in shards:
        shard = frozen.shard("videos", key)
        rows = [row | ({"status": "unavailable"} if row["video_id"] == lost else {}) for row in shard.rows()]
        shard.write_index(rows, provenance=shard.require({}), fields=VIDEO_COLUMNS)
    after = make_benchmark_scores(frozen, run, "own-test")
    others = frozenset(definition.video_ids) - {relevant}
    for row, result in after.results.items():
        earlier = before.results[row].availability
        assert result.availability.num_references == earlier.num_references - 1
        assert result.availability.num_rows_outside > earlier.num_rows_outside
        similarities = after.folder / f"similarities-{row.split()[0]}.parquet"
        assert relevant in pl.read_parquet(similarities)["reference_id"]
        assert result.metrics == evaluate(definition, similarities, policy="frozen", available=others).metrics
    stored = stored_scores(frozen, run, "own-test")["results"]["trained model"]
    assert stored["policy"] == "frozen"
    assert stored["metrics"] == after.results["trained model"].metrics
    for key in shards:  # as if the benchmark had never been fetched
        frozen.root.delete_folder(f"videos/{key}")
    with pytest.raises(DataError, match="run `hapvr download` for the source 'own-test', or choose another"):
        make_benchmark_scores(frozen, run, "own-test")
