"""What Dagster loads: names that users build on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import yaml

from hapvr.chain import CHAIN
from hapvr.chain import JOBS as CHAIN_JOBS
from pipelines.definitions import defs
from pipelines.jobs import ON_REQUEST, ONE_AT_A_TIME, jobs
from tests.conftest import CHECKOUT, small_settings, write_settings

ASSETS = {
    "video_manifest": ("ingest", None),
    "videos": ("ingest", "shards"),
    "frames": ("ingest", "shards"),
    "whitening": ("features", None),
    "features": ("features", "shards"),
    "training_views": ("training", "shards"),
    "pseudo_labels": ("training", "shards"),
    "similarity_model": ("training", None),
    "benchmark_scores": ("evaluation", None),
    "registered_model": ("registry", None),
    "frame_descriptors": ("search", "shards"),
    "search_index": ("search", None),
    "duplicate_pairs": ("search", "shards"),
    "duplicate_groups": ("search", None),
    "watch_matches": ("search", "shards"),
}


def test_asset_keys_groups_and_partitions_are_stable() -> None:
    """The fifteen assets, their groups and partitions: renaming one breaks users' schedules and links."""
    graph = defs.resolve_asset_graph()
    found = {}
    for key in graph.get_all_asset_keys():
        partitions = graph.get(key).partitions_def
        name = partitions.name if isinstance(partitions, dg.DynamicPartitionsDefinition) else None
        found[key.to_user_string()] = (graph.get(key).group_name, name)
    assert found == ASSETS


JOBS = {
    "find_videos": ["video_manifest"],
    "ingest": ["videos", "frames"],
    "whiten": ["whitening"],
    "extract": ["features", "training_data"],
    "retrain": ["similarity_model", "benchmark_scores", "registered_model"],
    "describe": ["frame_descriptors"],
    "index": ["search_index"],
    "duplicates": ["duplicate_pairs"],
    "group": ["duplicate_groups"],
    "watch": ["watch_matches"],
}
SENSORS = {
    "new_videos": (["find_videos", "retrain"], "STOPPED"),
    "missing_and_outdated": (None, "STOPPED"),
    "fail_lost_runs": (None, "RUNNING"),
    "waiting_alerts": (None, "RUNNING"),
    "old_runs": (None, "RUNNING"),
    "close_failed_training": (None, "RUNNING"),
    "close_canceled_training": (None, "RUNNING"),
}
SCHEDULES = {"retrain_on_schedule": ("retrain", "0 3 * * 0", "UTC", "STOPPED")}
CHECKS = {
    "videos": {"unavailable_videos", "failed_videos", "duplicate_videos"},
    "frames": {"undecodable_videos", "frame_rate", "stored_bytes"},
    "features": {"feature_values", "feature_norms", "stored_bytes"},
    "training_views": {"stored_bytes"},
    "pseudo_labels": {"stored_bytes"},
    "registered_model": {"better_on_the_target", "no_required_metric_worse"},
    "search_index": {"recall"},
    "duplicate_pairs": {"calibrated"},
    "duplicate_groups": {"all_shards_compared"},
    "watch_matches": {"queries_usable", "alerts_delivered"},
}


def test_jobs_are_stable_and_those_that_may_be_retried_say_so() -> None:
    """Steps of each job in order; all carry the retry tags, and those of shards have their partitions."""
    found = {job.name: job for job in defs.resolve_all_job_defs() if not job.name.startswith("__")}
    assert {name: [node.name for node in job.nodes_in_topological_order] for name, job in found.items()} == JOBS
    for name, job in found.items():
        assert job.tags["dagster/retry_strategy"] == "FROM_FAILURE", name
        assert (job.partitions_def is not None) == (name in ("ingest", "extract", "describe", "duplicates", "watch")), (
            name
        )


def started(sensor: dg.SensorDefinition) -> str | list[str] | None:
    """The job that a sensor starts, or its jobs."""
    names = [target.job_name for target in sensor.targets] if sensor.has_jobs else []
    return names if len(names) > 1 else next(iter(names), None)


def test_sensors_and_schedules_are_stable() -> None:
    """Names, what they start, and whether they are on where the configuration does not ask for automation."""
    repository = defs.get_repository_def()
    sensors = {sensor.name: (started(sensor), sensor.default_status.value) for sensor in repository.sensor_defs}
    assert sensors == SENSORS
    schedules = {
        schedule.name: (
            schedule.job_name,
            schedule.cron_schedule,
            schedule.execution_timezone,
            schedule.default_status.value,
        )
        for schedule in repository.schedule_defs
    }
    assert schedules == SCHEDULES


def test_asset_checks_are_stable() -> None:
    """Which checks each asset has; each says what it looks at."""
    graph = defs.resolve_asset_graph()
    found: dict[str, set[str]] = {}
    for key in graph.asset_check_keys:
        found.setdefault(key.asset_key.to_user_string(), set()).add(key.name)
        assert graph.get_check_spec(key).description
    assert found == CHECKS


def test_automation_follows_the_configuration(tmp_path: Path) -> None:
    """With `automation.enabled`, sensors and schedule start on, at the configured times."""
    settings = small_settings(tmp_path, tmp_path / "data")
    settings["automation"] = {
        "enabled": True, "duplicates": True, "retrain_cron": "30 1 * * 3", "timezone": "Europe/Berlin",
    }  # fmt: skip
    code = (
        "from pipelines.definitions import defs; r = defs.get_repository_def(); (s,) = r.schedule_defs;"
        "print(s.cron_schedule, s.execution_timezone, s.default_status.value,"
        " {x.default_status.value for x in r.sensor_defs})"
    )
    environment = os.environ | {"HAPVR_CONFIG": str(write_settings(tmp_path / "config.yaml", settings))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env=environment,
        check=True,
    )
    assert done.stdout.split("\n")[0] == "30 1 * * 3 Europe/Berlin RUNNING {'RUNNING'}"


def test_training_and_extraction_share_one_gpu_slot_and_trainings_queue() -> None:
    """Every asset that computes on a GPU is in the pool `gpu`, which dagster.yaml gives one run at a time; re-trainings follow
    each other."""
    pooled = {
        key.to_user_string()
        for asset in defs.resolve_asset_graph().assets_defs
        if "gpu" in {op.pool for op in asset.node_def.iterate_op_defs()}
        for key in asset.keys
    }
    assert pooled == {
        "whitening", "features", "training_views", "pseudo_labels", "similarity_model", "benchmark_scores",
        "frame_descriptors", "duplicate_pairs", "watch_matches",
    }  # fmt: skip
    settings = yaml.safe_load((CHECKOUT / "dagster_home" / "dagster.yaml").read_text())
    assert settings["concurrency"]["pools"] == {"default_limit": 1, "granularity": "run"}
    (limit,) = settings["concurrency"]["runs"]["tag_concurrency_limits"]
    assert limit == {"key": ONE_AT_A_TIME, "value": {"applyLimitPerUniqueValue": True}, "limit": 1}
    tagged = {name: job.tags[ONE_AT_A_TIME] for name, job in jobs.items() if ONE_AT_A_TIME in job.tags}
    assert tagged == {"retrain": "training", "find_videos": "manifest", "index": "index", "group": "group"}
    assert settings["run_monitoring"]["enabled"]
    assert settings["run_retries"]["enabled"]


def test_every_asset_is_described_and_the_demo_launches_it_after_its_inputs() -> None:
    """A newcomer reads the graph: each asset says what it is; the demo's order is the graph's."""
    graph = defs.resolve_asset_graph()
    order = list(CHAIN)
    assert set(ON_REQUEST) < set(CHAIN_JOBS)
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert node.description
        assert node.owners
        assert node.kinds
        for parent in node.parent_keys:
            assert order.index(parent.to_user_string()) < order.index(key.to_user_string())


def test_workspace_points_at_the_definitions() -> None:
    """workspace.yaml names the file and attribute that exist."""
    (entry,) = yaml.safe_load((CHECKOUT / "workspace.yaml").read_text())["load_from"]
    assert entry["python_file"]["relative_path"] == "pipelines/definitions.py"
    assert entry["python_file"]["attribute"] == "defs"
