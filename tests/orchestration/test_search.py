"""The assets of search over stored features, and the sensor that keeps them up to date, with a champion in a registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from hapvr.features.backbone import load_backbone
from hapvr.features.whitening import load_whitening
from hapvr.model.checkpoint import load_network
from hapvr.scorer.bundle import write_bundle
from hapvr.search.current import current_index
from hapvr.stages.project import Project
from hapvr.stages.search_model import search_model
from hapvr.stages.training import tracker_of
from hapvr.tracking.champions import promote, rollback
from hapvr.tracking.packaging import log_model
from hapvr.tracking.registry import register
from tests.orchestration.conftest import Storage, materialize
from tests.stages.search_projects import copied_project, network_folder

pytestmark = pytest.mark.slow


def registered(project: Project, *, seed: int) -> int:
    """A version of the project's model with a network of this seed, on the project's own features."""
    tracker = tracker_of(project)
    run_id = tracker.start(f"run-{seed}", name=f"run-{seed}", params={}, tags={})
    config = project.config
    bundle = write_bundle(
        project.folder / f"bundle-{seed}",
        network_folder=network_folder(project.folder, seed=seed),
        backbone=load_backbone(config.backbone),
        backbone_config=config.backbone,
        whitening=load_whitening(project.root),
        sampling=config.sampling,
        provenance={},
    )
    assert load_network(bundle / "network")
    uri = log_model(tracker, run_id, bundle)
    tracker.end(run_id)
    return register(tracker, config.tracking.registered_model, run_id=run_id, model_uri=uri, target=0.5, tags={})


@pytest.fixture
def searched(small_project: Project, tmp_path: Path) -> Iterator[tuple[Project, dg.DagsterInstance]]:
    """A project with features, and an instance that knows two of its shards."""
    project = copied_project(small_project, tmp_path)
    with Storage().instance(tmp_path, tmp_path / "config.yaml") as instance:
        instance.add_dynamic_partitions("shards", project.root.list_folders("features")[:2])
        yield project, instance


def tick(instance: dg.DagsterInstance) -> dg.SensorResult | dg.SkipReason | list[dg.RunRequest] | dg.RunRequest | None:
    """What the sensor wants."""
    from pipelines.automation import outdated_index
    from pipelines.resources import project_resource

    with dg.build_sensor_context(instance=instance, resources={"project": project_resource()}) as context:
        return outdated_index(context)  # type: ignore[no-any-return]


def test_descriptors_and_index_follow_features_and_champions(
    searched: tuple[Project, dg.DagsterInstance],
) -> None:
    """No champion; a champion; its descriptors; its index; nothing to do; another champion; a rollback."""
    project, instance = searched
    client = tracker_of(project).client
    keys = project.root.list_folders("features")
    skipped = tick(instance)
    assert isinstance(skipped, dg.SkipReason)
    assert "no champion yet" in str(skipped.skip_message)
    promote(client, "hapvr", registered(project, seed=0), reason="first")
    wanted = tick(instance)
    assert isinstance(wanted, list)
    assert [(request.job_name, request.partition_key) for request in wanted] == [("describe", key) for key in keys[:2]]
    for key in keys[:2]:
        assert materialize(instance, "frame_descriptors", shard=key).success
    wanted = tick(instance)
    assert isinstance(wanted, dg.RunRequest)
    assert wanted.job_name == "index"
    assert materialize(instance, "search_index").success
    record = instance.get_latest_materialization_event(dg.AssetKey("search_index"))
    assert record is not None
    assert record.asset_materialization is not None
    shown = record.asset_materialization.metadata
    assert shown["model"].value == "models:/hapvr/1"
    assert shown["added"].value == keys
    key = dg.AssetCheckKey(dg.AssetKey("search_index"), "recall")
    (check,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=10)
    assert check.status.value == "SUCCEEDED"
    done = tick(instance)
    assert isinstance(done, dg.SkipReason)
    assert "has all features" in str(done.skip_message)
    first = current_index(project.root)
    promote(client, "hapvr", registered(project, seed=1), reason="second")
    assert current_index(project.root) == first
    wanted = tick(instance)
    assert isinstance(wanted, list)
    assert len(wanted) == 2
    assert materialize(instance, "search_index").success  # it makes the descriptors that are missing
    assert current_index(project.root).model == "models:/hapvr/2"
    rollback(client, "hapvr", reason="back")
    assert search_model(project).digest == first.digest
    wanted = tick(instance)
    assert isinstance(wanted, dg.RunRequest)
    assert wanted.job_name == "index"
    assert materialize(instance, "search_index").success
    assert current_index(project.root).place == first.place
    assert isinstance(tick(instance), dg.SkipReason)
