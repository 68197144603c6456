"""The only Definitions of this project; workspace.yaml loads it."""

import dagster as dg

from pipelines import automation, monitoring
from pipelines.chain import assets, resources
from pipelines.jobs import jobs
from pipelines.sweeps import sweep

defs = dg.Definitions(
    assets=assets,
    jobs=[*jobs, sweep],
    schedules=automation.schedules,
    sensors=[*automation.sensors, *monitoring.sensors],
    resources=resources,
    executor=dg.in_process_executor,
)
