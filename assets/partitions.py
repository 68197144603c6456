"""Partitions: shards of videos, those of the training set, and benchmarks. The manifest registers all of them."""

import dagster as dg

SHARDS = dg.DynamicPartitionsDefinition(name="shards")
TRAINING_SHARDS = dg.DynamicPartitionsDefinition(name="training_shards")
BENCHMARKS = dg.DynamicPartitionsDefinition(name="benchmarks")
GPU_POOL = "gpu"

# What is missing is made as soon as its inputs are there; what failed waits for a retry or for somebody. Unlike
# AutomationCondition.on_missing this also takes up what was missing before automation was switched on.
MISSING = (
    dg.AutomationCondition.missing()
    & ~dg.AutomationCondition.in_progress()
    & ~dg.AutomationCondition.any_deps_missing()
    & ~dg.AutomationCondition.any_deps_in_progress()
    & ~dg.AutomationCondition.execution_failed()
).with_label("missing, inputs are there")
# Where no shard is registered yet, none is missing either.
MISSING_WITH_SHARDS = (MISSING & dg.AutomationCondition.any_deps_match(~dg.AutomationCondition.missing())).with_label(
    "missing, shards are there and have their frames"
)


def synchronize(instance: dg.DagsterInstance, partitions: dg.DynamicPartitionsDefinition, keys: list[str]) -> None:
    """Make the registered keys of a definition equal to `keys`; those of another configuration go."""
    assert partitions.name is not None
    registered = set(instance.get_dynamic_partitions(partitions.name))
    for stale in sorted(registered - set(keys)):
        instance.delete_dynamic_partition(partitions.name, stale)
    instance.add_dynamic_partitions(partitions.name, [key for key in keys if key not in registered])
