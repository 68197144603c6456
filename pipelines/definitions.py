"""The only Definitions of this project; workspace.yaml loads it."""

import dagster as dg

from assets import duplicates, evaluation, features, frames, registry, search, training, videos, views, watch
from pipelines import automation, monitoring
from pipelines.jobs import jobs, on_request
from pipelines.resources import pipes_client, project_resource

defs = dg.Definitions(
    assets=dg.load_assets_from_modules(
        [videos, frames, features, views, training, evaluation, registry, search, duplicates, watch]
    ),
    jobs=[*jobs, *on_request],
    schedules=automation.schedules,
    sensors=[*automation.sensors, *monitoring.sensors],
    resources={"project": project_resource(), "pipes_subprocess_client": pipes_client()},
    executor=dg.in_process_executor,
)
