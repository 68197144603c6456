"""The only Definitions of this project; workspace.yaml loads it."""

import dagster as dg

from assets import evaluation, features, frames, registry, training, videos, views
from pipelines.jobs import demo, retrain
from pipelines.resources import pipes_client, project_resource

defs = dg.Definitions(
    assets=dg.load_assets_from_modules([videos, frames, features, views, training, evaluation, registry]),
    jobs=[demo, retrain],
    resources={"project": project_resource(), "pipes_subprocess_client": pipes_client()},
    executor=dg.in_process_executor,
)
