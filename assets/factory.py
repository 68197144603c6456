"""An asset for each step of the chain. Inputs, partitions and pool come from `hapvr.chain`; modules
of assets add what the UI shows. A step without such a module gets a plain asset."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg

from assets import metadata
from assets.checks import empty_record, specs
from assets.project import DATA_TEAM, GPU_POOL, MODEL_TEAM, SHARDS, ProjectResource
from hapvr.chain import CHAIN
from hapvr.chain.step import ShardStep, shards_of

if TYPE_CHECKING:
    from hapvr.steps.project import Project

NOT_IN_COLLECTION = (
    "This shard is a benchmark made of the collection's videos, so it is not searched."
)
PLAIN_GROUP = "features"
"""The group of the plain assets."""
PROGRESS_EVERY_S = 5.0


class Made(NamedTuple):
    """The result of a step. key: of the shard; "" for a step without shards."""

    context: dg.AssetExecutionContext
    resource: ProjectResource
    project: "Project"
    key: str
    result: Any


def progress_lines(write: Callable[[str], object], what: str) -> Callable[[int, int], None]:
    """Turns progress into lines of a run's log, at most every PROGRESS_EVERY_S seconds."""
    start = last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < PROGRESS_EVERY_S and done != total:
            return
        last = now
        rate = done / max(now - start, 1e-9)
        left = f", {(total - done) / rate:.0f} s left" if total > done and rate > 0 else ""
        write(f"{what}: {done}/{total or '?'}, {rate:.1f}/s{left}")

    return tell


def dependencies(name: str) -> list[dg.AssetDep]:
    """The inputs of a step. A step without shards reads all shards of its inputs."""
    step = CHAIN[name]
    deps = []
    for source in step.inputs:
        reads_all_shards = CHAIN[source].per_shard and not step.per_shard
        mapping = dg.AllPartitionMapping() if reads_all_shards else None
        deps.append(dg.AssetDep(source, partition_mapping=mapping))

    return deps


def described(name: str) -> str:
    """A sentence on what a step does."""
    does = CHAIN[name].does
    return f"{does[0].upper()}{does[1:]}."


def chain_asset(
    name: str,
    *,
    group: str,
    kinds: set[str],
    checks: Mapping[str, str] | None = None,
    output_required: bool = True,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """`dg.asset` with the chain's declaration of a step.

    checks: name -> what the check is about
    output_required: False if it may make nothing; later steps are then skipped"""
    step = CHAIN[name]
    return dg.asset(
        name=name,
        group_name=group,
        kinds=kinds,
        owners=[MODEL_TEAM if step.job == "retrain" else DATA_TEAM],
        pool=GPU_POOL if step.gpu else None,
        partitions_def=SHARDS if step.per_shard else None,
        deps=dependencies(name),
        check_specs=specs(name, checks or {}),
        output_required=output_required,
        description=described(name),
    )


def step_asset(
    name: str,
    show: Callable[[Made], dg.MaterializeResult],
    *,
    arguments: Callable[[dg.AssetExecutionContext], dict[str, Any]] = lambda _: {},
    **options: Any,
) -> dg.AssetsDefinition:
    """The asset of a step.

    show: what a materialisation shows of the result
    arguments: of `Step.run`
    options: of `chain_asset`"""
    step = CHAIN[name]

    @chain_asset(name, **options)
    def make(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
        opened = project.open()
        key = context.partition_key if step.per_shard else ""
        progress = progress_lines(context.log.info, f"{name} {key}".rstrip())
        if step.shards == "collection" and key not in shards_of(opened, step):
            return empty_record(NOT_IN_COLLECTION, options.get("checks", ()))
        try:
            result = step.run(opened, key, progress=progress, **arguments(context))
        finally:
            _end_decoders()

        return show(Made(context, project, opened, key, result))

    return make


def _end_decoders() -> None:
    """End the decoders that wait for more work, since Dagster executes a run in a process that
    waits for its children when it ends."""
    from hapvr.video.kept_workers import end_idle_workers

    end_idle_workers()


def plain_assets(declared: Collection[str]) -> list[dg.AssetsDefinition]:
    """Plain assets for the steps that no other module declares."""
    return [
        step_asset(name, _show_plainly, group=PLAIN_GROUP, kinds={"parquet"})
        for name in CHAIN
        if name not in declared
    ]


def _show_plainly(made: Made) -> dg.MaterializeResult:
    """Counts and digests of a shard; nothing for a step without shards."""
    step = CHAIN[made.context.asset_key.to_user_string()]
    if isinstance(step, ShardStep):
        return metadata.shard(made.result)
    return dg.MaterializeResult()
