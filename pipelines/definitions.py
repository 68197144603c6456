"""The only Definitions of this project; workspace.yaml loads it."""

import dagster as dg

from assets import duplicates, evaluation, features, registry, search, training, videos
from assets.factory import plain_assets
from pipelines import automation, monitoring
from pipelines.resources import project_resource


def with_condition(spec: dg.AssetSpec) -> dg.AssetSpec:
    """An asset with the condition on which the automation makes it."""
    condition = automation.CONDITIONS.get(spec.key.to_user_string())
    return spec.replace_attributes(automation_condition=condition)


loaded = dg.load_assets_from_modules(
    [videos, features, training, evaluation, registry, search, duplicates]
)
declared = [asset for asset in loaded if isinstance(asset, dg.AssetsDefinition)]
others = plain_assets({key.to_user_string() for asset in declared for key in asset.keys})
assets = dg.map_asset_specs(with_condition, [*declared, *others])
defs = dg.Definitions(
    assets=assets,
    jobs=list(automation.jobs.values()),
    schedules=automation.schedules,
    sensors=[*automation.sensors, *monitoring.sensors],
    resources={
        "project": project_resource(),
        # A training gets time to write a checkpoint when its run is cancelled.
        "pipes_subprocess_client": dg.PipesSubprocessClient(termination_timeout_seconds=60),
    },
    executor=dg.in_process_executor,
)
