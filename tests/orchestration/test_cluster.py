"""The instance files of a team and of a cluster, and what a run asks of its node."""

from typing import Any, get_args

import pytest
import yaml
from pydantic import ValidationError

from hapvr.automation import AutomationConfig, Job
from tests.conftest import CHECKOUT


def instance_file(folder: str) -> dict[str, Any]:
    """A dagster.yaml of the checkout."""
    text = (CHECKOUT / "dagster_home" / folder / "dagster.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def test_instances_differ_in_storage_launcher_and_limits_only() -> None:
    """A team's instance is the default one but for its storage; a cluster's also launches elsewhere
    and has other limits."""
    default = instance_file(".")
    team = instance_file("team")
    cluster = instance_file("cluster")
    storages = ("run_storage", "schedule_storage", "event_log_storage")
    of_cluster = {storage: cluster.pop(storage) for storage in storages}
    of_team = {storage: team.pop(storage) for storage in storages}
    assert of_cluster == of_team
    assert team == default
    limits = [
        one.pop("concurrency")["runs"]["tag_concurrency_limits"] for one in (cluster, default)
    ]
    assert limits[0] == limits[1]
    assert cluster["run_monitoring"].pop("start_timeout_seconds") > 0
    assert cluster == cluster | default


def test_resources_are_for_jobs_that_there_are() -> None:
    """The configuration knows the jobs by name."""
    from pipelines.definitions import defs

    jobs = {job.name for job in defs.resolve_all_job_defs() if not job.name.startswith("__")}
    assert set(get_args(Job)) == jobs
    with pytest.raises(ValidationError):
        AutomationConfig.model_validate({"run_resources": {"train": {"num_cpus": 2}}})
