"""The assets of search over stored features, and the sensor that keeps them up to date, with a
champion in a registry."""

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from hapvr.collection import COLLECTION_FILE, add_folders, update_collection
from hapvr.data.features import collection_shards
from hapvr.progress import no_progress
from hapvr.registry.versions import rollback
from hapvr.scorer.calibration import Calibration, fit_calibration
from hapvr.scorer.evidence import EvidenceModel
from hapvr.scorer.evidence_kinds import names
from hapvr.search.collection import current_index
from hapvr.search.marks import mark
from hapvr.steps.project import Project
from hapvr.steps.search_model import search_model
from hapvr.steps.training import tracker_of
from tests.conftest import write_clip, write_settings
from tests.orchestration.conftest import Storage, execute, materialize, requested
from tests.registry.empty_store import new_store
from tests.steps.search_projects import (
    bundle_of,
    copied_project,
    register_bundle,
    with_real_weights,
)

pytestmark = pytest.mark.slow


ZEROS = dict.fromkeys(names(), 0.0)
TENS = dict.fromkeys(("num_matches", "num_others", "num_groups"), 10)
SURE = EvidenceModel(weights=ZEROS, intercept=9.0, prior=0.5, brier=0.0, **TENS)


def champion(project: Project, *, seed: int, fitted: Calibration | None = None) -> None:
    """One more version of the project's model, with a network of this seed, is the champion."""
    bundle = bundle_of(project, project.folder, seed=seed, fitted=fitted, weighed=SURE)
    register_bundle(project, with_real_weights(bundle))


@pytest.fixture
def searched(
    small_project: Project, tmp_path: Path
) -> Iterator[tuple[Project, dg.DagsterInstance]]:
    """A project with features, and an instance that knows its shards."""
    project = copied_project(small_project, tmp_path)
    new_store(tmp_path / "data" / "mlflow")
    with Storage().instance(tmp_path, tmp_path / "config.yaml") as instance:
        instance.add_dynamic_partitions("shards", project.root.list_folders("features"))
        yield project, instance


SEARCH_STEPS = (
    "frame_descriptors",
    "search_index",
    "duplicate_pairs",
    "duplicate_groups",
    "watch_matches",
)


def tick(instance: dg.DagsterInstance) -> dict[str, list[str]]:
    """What the automation asks for now: partitions by asset, [""] of one without partitions."""
    result = requested(instance)
    wanted = {}
    for step in SEARCH_STEPS:
        key = dg.AssetKey(step)
        if result.get_num_requested(key):
            partitioned = step in ("frame_descriptors", "duplicate_pairs", "watch_matches")
            wanted[step] = sorted(result.get_requested_partitions(key)) if partitioned else [""]

    return wanted


def shown(instance: dg.DagsterInstance, asset: str) -> dict[str, object]:
    """The metadata of the last materialisation."""
    event = instance.get_latest_materialization_event(dg.AssetKey(asset))
    return {name: entry.value for name, entry in event.asset_materialization.metadata.items()}


def passed(instance: dg.DagsterInstance, asset: str, name: str) -> bool:
    """The last result of a check."""
    key = dg.AssetCheckKey(dg.AssetKey(asset), name)
    return (
        instance.event_log_storage.get_asset_check_execution_history(key, limit=1)[0].status.value
        == "SUCCEEDED"
    )


def widest_pair(project: Project, keys: list[str]) -> tuple[str, str]:
    """The two videos of the stored pairs that show most of each other."""
    places = [project.root.local_path(f"duplicate_pairs/{key}/rows.parquet") for key in keys]
    pairs = pl.concat([pl.read_parquet(place) for place in places])
    shown_of_both = pl.min_horizontal("first_covered", "second_covered")
    widest = pairs.sort(shown_of_both, descending=True).row(0, named=True)
    return widest["first"], widest["second"]


def test_without_a_benchmark_the_untrained_baseline_stays(
    searched: tuple[Project, dg.DagsterInstance],
) -> None:
    """As in a collection of `hapvr index add`: `retrain` ends well and trains nothing, and the
    index is the baseline's."""
    project, instance = searched
    settings = project.config.model_dump(mode="json")
    settings["evaluation"] |= {"benchmarks": [], "validation": None}
    write_settings(project.folder / "config.yaml", settings)
    result = execute(instance, "retrain")
    assert result.success
    assert not result.get_asset_materialization_events()
    assert materialize(instance, "search_index").success
    assert current_index(project.root).model == "models:/hapvr/1"


def test_a_collection_without_a_registry_is_indexed_by_its_baseline(tmp_path: Path) -> None:
    """Nothing but the folder of the bundle says which model that is, once the index is gone."""
    write_clip(tmp_path / "in" / "a.mp4", seed=0)
    root = tmp_path / "root"
    project = add_folders(root, [tmp_path / "in"])
    update_collection(project, lambda _: nullcontext(no_progress))
    model = current_index(project.root).model
    shutil.rmtree(root / "search")
    with Storage().instance(tmp_path, root / COLLECTION_FILE) as instance:
        instance.add_dynamic_partitions("shards", ["in-00000"])
        assert materialize(instance, "frame_descriptors", shard="in-00000").success
        assert shown(instance, "frame_descriptors")["model"] == model
        assert materialize(instance, "search_index").success
        assert shown(instance, "search_index")["model"] == model


def test_descriptors_and_index_follow_features_and_champions(
    searched: tuple[Project, dg.DagsterInstance],
) -> None:
    """No champion; a champion; its descriptors; its index; nothing to do; another champion; a
    rollback."""
    project, instance = searched
    keys = list(collection_shards(project.root)[0])
    assert tick(instance) == {}
    champion(project, seed=0)
    assert tick(instance) == {"frame_descriptors": keys}
    for key in keys:
        assert materialize(instance, "frame_descriptors", shard=key).success
    assert tick(instance) == {"search_index": [""]}
    assert materialize(instance, "search_index").success
    metadata = shown(instance, "search_index")
    assert metadata["model"] == "models:/hapvr/1"
    assert metadata["added"] == keys
    assert passed(instance, "search_index", "recall")
    assert tick(instance) == {}
    first = current_index(project.root)
    champion(project, seed=1)
    assert current_index(project.root) == first
    assert tick(instance) == {"frame_descriptors": keys}
    assert materialize(
        instance, "search_index"
    ).success  # it makes the descriptors that are missing
    assert current_index(project.root).model == "models:/hapvr/2"
    rollback(tracker_of(project).client, "hapvr", reason="back")
    assert search_model(project).digest == first.digest
    assert tick(instance) == {"search_index": [""]}
    assert materialize(instance, "search_index").success
    assert current_index(project.root).place == first.place
    assert tick(instance) == {}


def test_pairs_and_lists_follow_the_index(
    searched: tuple[Project, dg.DagsterInstance], clips_folder: Path
) -> None:
    """No index; an index of a model without calibration; one of a calibrated model: pairs by shard,
    groups; marks; a list of one clip of the collection and a file that is no video, with a webhook
    that is away."""
    project, instance = searched
    settings = project.config.model_dump(mode="json")
    settings["automation"]["duplicates"] = True
    write_settings(project.folder / "config.yaml", settings)
    assert tick(instance) == {}
    champion(project, seed=0)
    assert materialize(instance, "search_index").success
    keys = list(collection_shards(project.root)[0])
    assert tick(instance) == {"duplicate_pairs": keys}
    for asset in ("frame_descriptors", "duplicate_pairs"):
        assert materialize(instance, asset, shard="own-test-00000").success
        assert "a benchmark made of the collection's videos" in str(
            shown(instance, asset)["reason"]
        )

    assert materialize(instance, "duplicate_pairs", shard=keys[0]).success
    assert "fitted on no searches" in str(shown(instance, "duplicate_pairs")["reason"])
    assert not passed(instance, "duplicate_pairs", "calibrated")

    champion(project, seed=1, fitted=sure_of_all())
    assert materialize(instance, "search_index").success
    seen: set[str] = set()
    for key in keys[:-1]:
        assert materialize(instance, "duplicate_pairs", shard=key).success
        seen |= shown(instance, "duplicate_pairs").keys()

    assert {"kinds", "surest_pairs"} <= seen
    assert materialize(instance, "duplicate_groups").success
    assert not passed(instance, "duplicate_groups", "all_shards_compared")
    assert tick(instance) == {"duplicate_pairs": keys[-1:]}
    assert materialize(instance, "duplicate_pairs", shard=keys[-1]).success
    assert shown(instance, "duplicate_pairs")["model"] == "models:/hapvr/2"
    assert passed(instance, "duplicate_pairs", "calibrated")
    # strangers look alike to it, and have not the same course; only people can say that two are
    # copies
    mark(project.root, *widest_pair(project, keys), "match")
    assert tick(instance) == {"duplicate_groups": [""]}
    assert materialize(instance, "duplicate_groups").success
    assert passed(instance, "duplicate_groups", "all_shards_compared")
    groups = shown(instance, "duplicate_groups")
    assert groups["groups"]
    assert {"members", "bytes_more_than_needed", "dagster/column_schema"} <= groups.keys()
    assert tick(instance) == {}

    (project.folder / "watched").mkdir()
    for name in ("clip 01.mp4", "text.mp4"):
        shutil.copy(clips_folder / name, project.folder / "watched" / name)
    settings["watch"] = {
        "lists": [
            {"name": "leaked", "path": str(project.folder / "watched"), "min_probability": 0.5}
        ],
        "webhook": {"url": "http://127.0.0.1:9/nobody"},
    }
    write_settings(project.folder / "config.yaml", settings)
    assert tick(instance) == {"watch_matches": sorted(keys)}
    for key in keys:
        assert materialize(instance, "watch_matches", shard=key).success
    metadata = shown(instance, "watch_matches")
    assert {"matches", "new_alerts", "dagster/row_count"} <= metadata.keys()
    assert not passed(instance, "watch_matches", "queries_usable")
    assert not passed(instance, "watch_matches", "alerts_delivered")
    (project.folder / "watched" / "text.mp4").unlink()
    assert tick(instance) == {"watch_matches": sorted(keys)}
    for key in keys:
        assert materialize(instance, "watch_matches", shard=key).success
    assert passed(instance, "watch_matches", "queries_usable")
    assert tick(instance) == {}


def sure_of_all() -> Calibration:
    """As if all other pairs had similarities about -0.9, so that a network of random weights finds
    pairs and copies."""
    steps = [step / 100 for step in range(20)]
    matches = [-0.7 + step for step in steps]
    others = [-0.99 + step for step in steps]
    return fit_calibration(matches, others, source={}, frame_threshold=-0.9)
