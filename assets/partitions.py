"""The one set of partitions: shards of videos."""

import dagster as dg

SHARDS = dg.DynamicPartitionsDefinition(name="shards")
# Runs with an asset of this pool follow each other: dagster.yaml gives the pool one run at a time.
GPU_POOL = "gpu"


def synchronize(instance: dg.DagsterInstance, keys: list[str]) -> None:
    """Make the registered shards equal to `keys`; shards of another configuration are removed."""
    assert SHARDS.name is not None
    registered = set(instance.get_dynamic_partitions(SHARDS.name))
    for stale in sorted(registered - set(keys)):
        instance.delete_dynamic_partition(SHARDS.name, stale)
    instance.add_dynamic_partitions(SHARDS.name, [key for key in keys if key not in registered])
