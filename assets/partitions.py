"""The one set of partitions, shards of videos, and when a missing asset is asked for."""

import dagster as dg

SHARDS = dg.DynamicPartitionsDefinition(name="shards")
# Runs with an asset of this pool follow each other: dagster.yaml gives the pool one run at a time.
GPU_POOL = "gpu"

# A missing asset is made as soon as its inputs are there. A failed one waits for a retry or for a person.
# AutomationCondition.on_missing would not do: it ignores what was missing before automation was switched on.
MISSING = (
    dg.AutomationCondition.missing()
    & ~dg.AutomationCondition.in_progress()
    & ~dg.AutomationCondition.any_deps_missing()
    & ~dg.AutomationCondition.any_deps_in_progress()
    & ~dg.AutomationCondition.execution_failed()
).with_label("missing, inputs are there")
# Where no shard is registered yet, no shard is missing either.
MISSING_WITH_SHARDS = (MISSING & dg.AutomationCondition.any_deps_match(~dg.AutomationCondition.missing())).with_label(
    "missing, shards are there and have their frames"
)
# Pseudo labels do not depend on the whitening, but wait for it: one run then makes them with the views, in one pass.
MISSING_WITH_WHITENING = (
    MISSING & dg.AutomationCondition.asset_matches("whitening", ~dg.AutomationCondition.missing())
).with_label("missing, inputs and the whitening are there")


def synchronize(instance: dg.DagsterInstance, keys: list[str]) -> None:
    """Make the registered shards equal to `keys`; shards of another configuration are removed."""
    assert SHARDS.name is not None
    registered = set(instance.get_dynamic_partitions(SHARDS.name))
    for stale in sorted(registered - set(keys)):
        instance.delete_dynamic_partition(SHARDS.name, stale)
    instance.add_dynamic_partitions(SHARDS.name, [key for key in keys if key not in registered])
