"""Jobs: the whole chain, and what a re-training needs."""

import sys
import time
from collections.abc import Sequence

import dagster as dg

from assets.partitions import SHARDS
from pipelines.chain import STAGES, Stage, run_stage, wait_before_retry
from pipelines.resources import automation_settings

SETTINGS = automation_settings()
RETRIES = {
    "dagster/max_retries": str(SETTINGS.max_retries),
    "dagster/retry_on_asset_or_op_failure": "true",
    "dagster/retry_strategy": "FROM_FAILURE",
}
ONE_AT_A_TIME = "hapvr/one_at_a_time"
RETRAINED = ("training_views", "pseudo_labels", "similarity_model", "benchmark_scores", "registered_model")


def _stage_op(stage: Stage, position: int) -> dg.OpDefinition:
    @dg.op(
        name=f"materialize_{stage.asset}",
        ins={"before": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        description=f"Materialises `{stage.asset}`" + (", one run per partition." if stage.partitions else "."),
    )
    def materialize(context: dg.OpExecutionContext) -> None:
        wait_before_retry(context, first_wait_s=SETTINGS.retry_wait_s)
        start = time.monotonic()
        runs = run_stage(context, stage)
        count = f"{runs} partitions" if stage.partitions else ""
        line = f"[{position:2d}/{len(STAGES)}] {stage.asset:<18} {count:<14} {time.monotonic() - start:6.1f} s"
        context.log.info(line)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    return materialize


# Jobs share their ops: names must be unique in a code location.
OPS = {stage.asset: _stage_op(stage, position) for position, stage in enumerate(STAGES, start=1)}


def chain_job(name: str, stages: Sequence[Stage], *, description: str, tags: dict[str, str]) -> dg.JobDefinition:
    """A job that materialises the stages one after the other; a retry goes on at the one that failed."""

    @dg.job(name=name, description=description, tags=tags, executor_def=dg.in_process_executor)
    def chain() -> None:
        before = None
        for stage in stages:
            op = OPS[stage.asset]
            before = op(before) if before is not None else op()

    return chain


demo = chain_job(
    "demo",
    STAGES,
    description="Everything, from the sources to a registered model; `make demo` runs it.",
    tags={ONE_AT_A_TIME: "training"},
)
retrain = chain_job(
    "retrain",
    [stage for stage in STAGES if stage.asset in RETRAINED],
    description="From views of what has arrived to a registered version, which the gate compares with the champion.",
    tags=RETRIES | {ONE_AT_A_TIME: "training"},
)
find_videos = dg.define_asset_job(
    "find_videos",
    selection=dg.AssetSelection.assets("video_manifest"),
    description="New videos of the sources become new shards.",
    tags=RETRIES | {ONE_AT_A_TIME: "manifest"},
)
ingest_shard = dg.define_asset_job(
    "ingest_shard",
    selection=dg.AssetSelection.assets("videos", "frames", "features"),
    partitions_def=SHARDS,
    description="A shard from files to features; launch it as a backfill for several. Finished shards are left alone.",
    tags=RETRIES,
)
jobs = [demo, retrain, find_videos, ingest_shard]
