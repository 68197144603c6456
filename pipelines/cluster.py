"""Runs as jobs of a Ray cluster; dagster_home/cluster/dagster.yaml chooses it."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Self

import dagster as dg
from dagster._config import UserConfigSchema
from dagster._core.launcher import LaunchRunContext
from dagster._serdes import ConfigurableClassData
from dagster_ray import RayRunLauncher

RAY_TAG = "dagster-ray/config"
RESOURCES = ("num_cpus", "num_gpus", "memory")


class StageRayRunLauncher(RayRunLauncher):
    """dagster-ray's launcher, asking the cluster for what a run's steps need: decoding for CPUs, extraction for a GPU share.

    steps: resources by step. A run's own tag `dagster-ray/config` goes before it, the launcher's `num_cpus` and so on after it.
    """

    steps: Mapping[str, Mapping[str, float]]

    @classmethod
    def config_type(cls) -> UserConfigSchema:
        resources = dg.Shape({name: dg.Field(float, is_required=False) for name in RESOURCES})
        return {**super().config_type(), "steps": dg.Field(dg.Map(str, resources), default_value={})}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        launcher = super().from_config_value(inst_data, config_value)
        launcher.steps = config_value["steps"]
        return launcher

    def launch_run(self, context: LaunchRunContext) -> None:
        """Submits the run as a Ray job; returns before it starts."""
        run = context.dagster_run
        wanted = most_wanted(self.steps.get(step, {}) for step in steps_of(self._instance, run))
        if wanted and RAY_TAG not in run.tags:
            tags = {RAY_TAG: json.dumps(wanted)}
            self._instance.add_run_tags(run.run_id, tags)
            context = LaunchRunContext(dagster_run=run.with_tags({**run.tags, **tags}), workspace=context.workspace)
        super().launch_run(context)


def steps_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[str]:
    """The steps that a run will execute; of a retry those from the failed one on."""
    assert run.execution_plan_snapshot_id is not None
    return list(instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id).step_keys_to_execute)


def most_wanted(resources: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The most of each resource: steps of a run follow each other in one process."""
    most: dict[str, float] = {}
    for wanted in resources:
        for name, amount in wanted.items():
            most[name] = max(amount, most.get(name, 0.0))
    return most
