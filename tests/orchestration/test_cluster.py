"""The instance files of a team and of a cluster, and what a run asks of its node."""

from __future__ import annotations

from typing import Any

import dagster as dg
import yaml

from pipelines.cluster import most_wanted, steps_of
from tests.conftest import CHECKOUT


def instance_file(folder: str) -> dict[str, Any]:
    """A dagster.yaml of the checkout."""
    text = (CHECKOUT / "dagster_home" / folder / "dagster.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def test_instances_differ_in_storage_launcher_and_limits_only() -> None:
    """A team's instance is the default one but for its storage; a cluster's also launches elsewhere and has other limits."""
    default, team, cluster = instance_file("."), instance_file("team"), instance_file("cluster")
    assert default.pop("event_log_storage")["class"] == "SqliteEventLog"
    for storage in ("run_storage", "schedule_storage", "event_log_storage"):
        assert cluster.pop(storage) == team.pop(storage)
    assert team == default
    assert (
        cluster["concurrency"]["runs"]["tag_concurrency_limits"]
        == default["concurrency"]["runs"]["tag_concurrency_limits"]
    )
    assert cluster["run_monitoring"].pop("start_timeout_seconds") > 0
    assert {key: cluster[key] for key in default if key != "concurrency"} == {
        key: default[key] for key in default if key != "concurrency"
    }


def test_resources_are_given_to_steps_that_exist() -> None:
    """Each name under `steps` is a step of an asset or a job."""
    from pipelines.definitions import defs

    jobs = (*defs.resolve_all_job_defs(), defs.resolve_implicit_global_asset_job_def())
    steps = {node.name for job in jobs for node in job.nodes}
    assert set(instance_file("cluster")["run_launcher"]["config"]["steps"]) <= steps


def test_a_run_asks_for_the_most_of_each_resource() -> None:
    """By hand."""
    assert most_wanted([{"num_cpus": 4.0}, {}, {"num_cpus": 2.0, "num_gpus": 0.5}]) == {
        "num_cpus": 4.0,
        "num_gpus": 0.5,
    }
    assert most_wanted([]) == {}


def test_steps_of_a_run_are_those_of_its_job() -> None:
    """The job's stages, in any order."""
    from pipelines.jobs import RETRAINED, retrain

    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(retrain)
        assert set(steps_of(instance, run)) == {f"materialize_{asset}" for asset in RETRAINED}
