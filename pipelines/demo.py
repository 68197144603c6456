"""The demo job without a daemon: one Dagster run per stage and partition, all visible in the UI afterwards.

    python -m pipelines.demo
"""

import os
import sys
import time
from collections.abc import Sequence

import dagster as dg
from rich.console import Console

from assets.partitions import BENCHMARKS, SHARDS, TRAINING_SHARDS
from pipelines.resources import CHECKOUT, project_resource

# The order is the graph's; a stage runs once per partition of its definition, or once where there is none.
STAGES: tuple[tuple[str, dg.DynamicPartitionsDefinition | None], ...] = (
    ("video_manifest", None),
    ("videos", SHARDS),
    ("frames", SHARDS),
    ("whitening", None),
    ("features", SHARDS),
    ("training_views", TRAINING_SHARDS),
    ("pseudo_labels", TRAINING_SHARDS),
    ("similarity_model", None),
    ("benchmark_scores", BENCHMARKS),
    ("registered_model", None),
)


def run_demo(instance: dg.DagsterInstance, definitions: dg.Definitions, console: Console) -> bool:
    """Materialise every stage; stops at the first one that fails and says where to look. True if all succeeded."""
    job = definitions.resolve_job_def("demo")
    for number, (asset, partitions) in enumerate(STAGES, start=1):
        keys: Sequence[str | None] = (None,)
        if partitions is not None:
            keys = sorted(instance.get_dynamic_partitions(partitions.name or ""))
        start = time.monotonic()
        for key in keys:
            result = job.execute_in_process(
                instance=instance, partition_key=key, asset_selection=[dg.AssetKey(asset)], raise_on_error=False
            )
            if not result.success:
                where = f" of partition {key}" if key else ""
                console.print(f"[red]{asset}{where} failed[/red]; run {result.run_id} in the UI (`make ui`) has the log:")
                console.print(_reason(result), markup=False)
                return False
        runs = f"{len(keys)} partitions" if partitions is not None else "done"
        console.print(f"[{number:2d}/{len(STAGES)}] {asset:<18} {runs:<14} {time.monotonic() - start:6.1f} s")
    return True


def main() -> int:
    """0: registered; 1: a stage failed; 2: the configuration is wrong."""
    from hapvr.errors import HapvrError
    from pipelines.definitions import defs
    from pipelines.summary import print_summary

    console = Console(soft_wrap=True)
    os.environ.setdefault("DAGSTER_HOME", str(CHECKOUT / "dagster_home"))
    try:
        project = project_resource().open()
    except HapvrError as error:
        console.print(str(error), markup=False)
        return 2
    with dg.DagsterInstance.get() as instance:
        if not run_demo(instance, defs, console):
            return 1
    print_summary(project, console)
    return 0


def _reason(result: dg.ExecuteInProcessResult) -> str:
    """The innermost error of the failed step: what the library said, without the framework's trace."""
    for event in result.all_events:
        if event.is_step_failure:
            error = event.step_failure_data.error
            while error is not None and error.cause is not None:
                error = error.cause
            return error.message.strip() if error is not None else "no error was recorded"
    return "the run failed before its first step; see the run's log"


if __name__ == "__main__":
    sys.exit(main())
