"""Jobs: the whole chain, and what a re-training needs."""

import dagster as dg

RETRIES = {
    "dagster/max_retries": "2",
    "dagster/retry_on_asset_or_op_failure": "true",
    "dagster/retry_strategy": "FROM_FAILURE",
}

demo = dg.define_asset_job(
    "demo",
    selection=dg.AssetSelection.all(),
    description="Everything, from the sources to a registered model. `make demo` runs it; in the UI, launch it over all partitions.",
)
retrain = dg.define_asset_job(
    "retrain",
    selection=dg.AssetSelection.groups("training", "evaluation", "registry"),
    description="From views to a registered version.",
    tags=RETRIES,
)
