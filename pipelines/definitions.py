"""The only Definitions of this project; workspace.yaml loads it."""

import dagster as dg

from pipelines.chain import assets, resources
from pipelines.jobs import demo, retrain

defs = dg.Definitions(
    assets=assets,
    jobs=[demo, retrain],
    resources=resources,
    executor=dg.in_process_executor,
)
