"""Assets of views and labels make what `train.source` reads, as `hapvr extract` does."""

import sys
from pathlib import Path

import dagster as dg
import pytest

from assets.features import training_data
from assets.project import ProjectResource
from hapvr.chain import CHAIN
from hapvr.chain.look import Look
from hapvr.data.manifest import training_shard_keys
from hapvr.steps.project import Project
from tests.steps.search_projects import copied_project

ASSETS = ("training_views", "pseudo_labels")


@pytest.fixture
def project(small_project: Project, tmp_path: Path) -> Project:
    """One whose views and labels were not made yet."""
    return copied_project(small_project, tmp_path)


def materialised(
    project: Project, instance: dg.DagsterInstance, source: str
) -> dict[str, dg.AssetMaterialization]:
    """What the assets of a training shard record with this `train.source`."""
    (shard, *_) = training_shard_keys(project.root)
    instance.add_dynamic_partitions("shards", [shard])
    resource = ProjectResource(
        config_path="config.yaml",
        folder=str(project.folder),
        overrides={"train.source": source},
    )
    result = dg.materialize(
        [training_data],
        instance=instance,
        resources={"project": resource},
        partition_key=shard,
    )
    return {
        asset: result.asset_materializations_for_node("training_data")[number]
        for number, asset in enumerate(ASSETS)
    }


def online(project: Project) -> Project:
    return Project.open(
        project.folder / "config.yaml",
        folder=project.folder,
        overrides={"train.source": "online"},
    )


def test_what_no_training_reads_is_not_made_in_dagster(project: Project) -> None:
    """The records say why, and how to make it nevertheless; nothing is missing afterwards."""
    with dg.DagsterInstance.ephemeral() as instance:
        records = materialised(project, instance, "online")

    for asset, record in records.items():
        assert record.metadata["dagster/row_count"].value == 0
        reason = str(record.metadata["reason"].value)
        assert "train.source online does not read it" in reason
        assert f"`hapvr run {asset}` makes it" in reason
        assert not project.root.exists(asset)
        assert CHAIN[asset].lacks(Look(online(project))) is None


@pytest.mark.slow
def test_what_another_source_reads_is_asked_for_again(project: Project) -> None:
    """The automation makes what steps lack: an empty record does not count."""
    with dg.DagsterInstance.ephemeral() as instance:
        materialised(project, instance, "online")
        lacking = {asset: CHAIN[asset].lacks(Look(project)) for asset in ASSETS}
        records = materialised(project, instance, "cached_views")

    (shard, *_) = training_shard_keys(project.root)
    for asset, record in records.items():
        assert shard in (lacking[asset] or {})
        assert record.metadata["dagster/row_count"].value > 0


def test_what_is_not_made_does_not_load_what_makes_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Networks in torch and views take longer to load than all else that such a run does."""
    monkeypatch.setitem(sys.modules, "hapvr.steps.views", None)
    with dg.DagsterInstance.ephemeral() as instance:
        assert materialised(project, instance, "online").keys() == set(ASSETS)
