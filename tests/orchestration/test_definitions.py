"""What Dagster loads: names that users build on."""

import json
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from hapvr.chain import CHAIN, JOBS as CHAIN_JOBS
from hapvr.errors import DamagedError
from pipelines.automation import ON_REQUEST, ONE_AT_A_TIME, jobs
from pipelines.definitions import defs
from pipelines.ui import GROUPS
from tests.conftest import CHECKOUT, small_settings, write_settings
from tests.orchestration.conftest import Storage

SENSORS = {
    "new_videos": (["find_videos", "retrain"], "STOPPED"),
    "missing_and_outdated": ([], "STOPPED"),
    "fail_lost_runs": ([], "RUNNING"),
    "waiting_alerts": ([], "RUNNING"),
    "old_runs": ([], "RUNNING"),
    "close_failed_training": ([], "RUNNING"),
    "close_canceled_training": ([], "RUNNING"),
}
SCHEDULES = {"retrain_on_schedule": ("retrain", "0 3 * * 0", "UTC", "STOPPED")}


def test_sensors_and_schedules_are_stable() -> None:
    """Names, what they start, and whether they are on where the configuration does not ask for
    automation."""
    repository = defs.get_repository_def()
    started = {
        one.name: [to.job_name for to in one.targets if one.has_jobs]
        for one in repository.sensor_defs
    }
    assert {
        one.name: (started[one.name], one.default_status.value) for one in repository.sensor_defs
    } == SENSORS
    schedules = {
        one.name: (
            one.job_name,
            one.cron_schedule,
            one.execution_timezone,
            one.default_status.value,
        )
        for one in repository.schedule_defs
    }
    assert schedules == SCHEDULES


@pytest.mark.slow
def test_automation_follows_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `enabled`, sensors and schedule start on, at the configured times. `run_resources` are
    on the runs of that job, and the most of any on those of the automation; other jobs ask for
    nothing."""
    settings = small_settings(tmp_path, tmp_path / "data")
    asking = {"ingest": {"num_cpus": 4}, "extract": {"num_cpus": 2, "num_gpus": 0.5}}
    settings["automation"] = {
        "enabled": True,
        "duplicates": True,
        "retrain_cron": "30 1 * * 3",
        "timezone": "Europe/Berlin",
        "run_resources": asking,
    }
    with Storage().instance(tmp_path, write_settings(tmp_path / "config.yaml", settings)):
        from pipelines.automation import _outdated, missing_and_outdated
        from pipelines.definitions import defs

        repository = defs.get_repository_def()
        (schedule,) = repository.schedule_defs
        assert schedule.cron_schedule == "30 1 * * 3"
        assert schedule.execution_timezone == "Europe/Berlin"
        assert {one.default_status.value for one in (schedule, *repository.sensor_defs)} == {
            "RUNNING"
        }
        damaged = Mock(side_effect=DamagedError("marks are damaged"))
        monkeypatch.setattr(type(CHAIN["duplicate_groups"]), "lacks", damaged)
        with pytest.warns(UserWarning, match="marks are damaged"):  # the rest goes on
            assert _outdated(datetime.now(UTC)).keys() == CHAIN.keys() - {"duplicate_groups"}
        asked = {
            job.name: job.tags.get("dagster-ray/config") for job in defs.resolve_all_job_defs()
        }
        for name, wanted in asking.items():
            assert json.loads(asked.pop(name) or "") == wanted
        assert set(asked.values()) == {None}
        assert json.loads(missing_and_outdated.run_tags["dagster-ray/config"]) == {
            "num_cpus": 4.0,
            "num_gpus": 0.5,
        }


def test_training_and_extraction_share_one_gpu_slot_and_trainings_queue() -> None:
    """Every asset that computes on a GPU is in the pool `gpu`, of which one run goes at a time;
    re-trainings queue."""
    pooled = {
        key.to_user_string()
        for asset in defs.resolve_asset_graph().assets_defs
        if "gpu" in {op.pool for op in asset.node_def.iterate_op_defs()}
        for key in asset.keys
    }
    assert pooled == {
        "whitening",
        "features",
        "training_views",
        "pseudo_labels",
        "similarity_model",
        "benchmark_scores",
        "frame_descriptors",
        "duplicate_pairs",
        "watch_matches",
    }
    settings = yaml.safe_load((CHECKOUT / "dagster_home" / "dagster.yaml").read_text())
    assert settings["concurrency"]["pools"] == {"default_limit": 1, "granularity": "run"}
    (limit,) = settings["concurrency"]["runs"]["tag_concurrency_limits"]
    assert limit == {"key": ONE_AT_A_TIME, "value": {"applyLimitPerUniqueValue": True}, "limit": 1}
    tagged = {
        name: job.tags[ONE_AT_A_TIME] for name, job in jobs.items() if ONE_AT_A_TIME in job.tags
    }
    assert tagged == {
        "retrain": "training",
        "find_videos": "manifest",
        "index": "index",
        "group": "group",
    }
    assert all(settings[name]["enabled"] for name in ("run_monitoring", "run_retries"))


def test_every_asset_is_described_and_the_demo_launches_it_after_its_inputs() -> None:
    """A newcomer reads the graph: each asset says what it is; the demo's order is the graph's."""
    graph = defs.resolve_asset_graph()
    assert set(ON_REQUEST) < set(CHAIN_JOBS)
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert all((node.description, node.group_name in GROUPS, node.owners, node.kinds))
        for parent in node.parent_keys:
            assert list(CHAIN).index(parent.to_user_string()) < list(CHAIN).index(
                key.to_user_string()
            )
