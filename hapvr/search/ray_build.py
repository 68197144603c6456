"""An index built on the nodes of a Ray cluster, by Lance's own integration: each worker codes the rows of some fragments."""

from __future__ import annotations

from collections.abc import Mapping

from hapvr.errors import ConfigError, MissingPartError

REMEDY = "set search.index.ray_workers to 0 to build it in this process"


def build_on_ray(
    place: str,
    *,
    column: str,
    metric: str,
    num_lists: int,
    code_bits: int,
    sample_rate: int,
    workers: int,
    environment: Mapping[str, str],
    storage_options: Mapping[str, str] | None,
) -> None:
    """Build the index of the last version of a dataset, a part per worker, in place of the one it has.

    The centres of the lists are computed here. The cluster is that of RAY_ADDRESS, or the one that this machine is a node
    of; its nodes must reach `place`, and have the same installation. environment: variables of the workers. Raises
    MissingPartError where the integration is not installed, ConfigError where there is no cluster.
    """
    try:
        import lance_ray
        import ray
    except ModuleNotFoundError as error:
        raise MissingPartError(
            f"search: building on a Ray cluster needs `pip install 'hapvr[cluster]'` ({error}); or {REMEDY}"
        ) from error
    try:
        ray.init("auto", ignore_reinit_error=True, log_to_driver=False)
    except (ConnectionError, RuntimeError) as error:
        raise ConfigError(
            f"search: no Ray cluster answers ({error}); start its nodes with `ray start`, or {REMEDY}"
        ) from error
    lance_ray.create_index(
        place,
        column,
        "IVF_RQ",
        replace=True,
        num_workers=workers,
        ray_remote_args={
            "num_cpus": 1,
            "scheduling_strategy": "SPREAD",
            "runtime_env": {"env_vars": dict(environment)},
        },
        storage_options=dict(storage_options or {}),
        metric=metric,
        num_partitions=num_lists,
        sample_rate=sample_rate,
        num_bits=code_bits,
    )
