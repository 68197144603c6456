"""Running the asset graph stage by stage from inside a job.

An asset job cannot hold assets of different partitions (Dagster 1.13), and this graph has three kinds: shards, training
shards and benchmarks, registered only while it runs. So a job here is a row of ops, one per stage; each materialises
its asset once per partition, as ordinary asset runs that the UI lists with their events and links.
"""

import time
from dataclasses import dataclass

import dagster as dg

from assets import evaluation, features, frames, registry, training, videos, views
from assets.chain import PARENT_RUN_TAG, chain_id
from assets.partitions import BENCHMARKS, SHARDS, TRAINING_SHARDS
from pipelines.resources import pipes_client, project_resource

QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}

assets = dg.load_assets_from_modules([videos, frames, features, views, training, evaluation, registry])
resources = {"project": project_resource(), "pipes_subprocess_client": pipes_client()}
asset_job = dg.Definitions(
    assets=assets, resources=resources, executor=dg.in_process_executor
).resolve_implicit_global_asset_job_def()


@dataclass(frozen=True)
class Stage:
    """An asset and the partitions it is materialised for; None: it has none."""

    asset: str
    partitions: dg.DynamicPartitionsDefinition | None = None


STAGES = (
    Stage("video_manifest"),
    Stage("videos", SHARDS),
    Stage("frames", SHARDS),
    Stage("whitening"),
    Stage("features", SHARDS),
    Stage("training_views", TRAINING_SHARDS),
    Stage("pseudo_labels", TRAINING_SHARDS),
    Stage("similarity_model"),
    Stage("benchmark_scores", BENCHMARKS),
    Stage("registered_model"),
)


def run_stage(context: dg.OpExecutionContext, stage: Stage) -> int:
    """Materialise the stage for all its partitions, one run each; returns their number. Raises dg.Failure with the reason."""
    instance = context.instance
    keys = partition_keys(instance, stage)
    for key in keys:
        context.log.info(f"materialising {stage.asset}" + (f" of partition {key}" if key else ""))
        result = asset_job.execute_in_process(
            instance=instance,
            asset_selection=[dg.AssetKey(stage.asset)],
            partition_key=key,
            run_config=QUIET,
            tags={PARENT_RUN_TAG: chain_id(context.run)},
            raise_on_error=False,
        )
        if not result.success:
            where = f"{stage.asset} of partition {key}" if key else stage.asset
            raise dg.Failure(
                f"{where}: {failure_reason(result)}",
                metadata={"run": dg.MetadataValue.dagster_run(result.run_id)},
                allow_retries=False,
            )
    return len(keys)


def partition_keys(instance: dg.DagsterInstance, stage: Stage) -> list[str | None]:
    """All partitions of a stage; of training shards only those that have frames: the others are still being ingested."""
    if stage.partitions is None:
        return [None]
    keys = set(instance.get_dynamic_partitions(stage.partitions.name or ""))
    if stage.partitions is TRAINING_SHARDS:
        keys &= instance.get_materialized_partitions(dg.AssetKey("frames"))
    return sorted(keys)


def wait_before_retry(context: dg.OpExecutionContext, *, first_wait_s: float) -> None:
    """Wait where this run is a retry and this is its first step; twice as long with each retry."""
    number = int(context.run.tags.get("dagster/retry_number", "0"))
    steps = context.run.step_keys_to_execute or ()
    if number and steps and context.get_step_execution_context().step.key == steps[0]:
        wait_s = first_wait_s * 2 ** (number - 1)
        context.log.info(f"retry {number}: waiting {wait_s:.0f} s")
        time.sleep(wait_s)


def failure_reason(result: dg.ExecuteInProcessResult) -> str:
    """The innermost error of the failed step: what the library said, without the framework's trace."""
    for event in result.all_events:
        if event.is_step_failure:
            error = event.step_failure_data.error
            while error is not None and error.cause is not None:
                error = error.cause
            return error.message.strip() if error is not None else "no error was recorded"
    return "the run failed before its first step; see its log"
