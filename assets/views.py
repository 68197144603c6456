"""Training data: augmented views as features, and the teacher's pseudo labels of the same views."""

from collections.abc import Iterator

import dagster as dg

from assets import checks, metadata
from assets.factory import dependencies, described
from assets.project import DATA_TEAM, GPU_POOL, SHARDS, ProjectResource

VIEWS, LABELS = "training_views", "pseudo_labels"
NOT_TRAINING = "This shard is not of the training split, so there is nothing to make."


@dg.multi_asset(
    name="training_data",
    group_name="training",
    pool=GPU_POOL,
    partitions_def=SHARDS,
    can_subset=True,
    specs=[
        dg.AssetSpec(
            name,
            deps=dependencies(name),
            kinds={"pytorch", "parquet"},
            owners=[DATA_TEAM],
            skippable=True,
            description=described(name),
        )
        for name in (VIEWS, LABELS)
    ],
    check_specs=[*checks.specs(VIEWS, checks.STORED), *checks.specs(LABELS, checks.STORED)],
)
def training_data(context: dg.AssetExecutionContext, project: ProjectResource) -> Iterator[dg.MaterializeResult]:
    from hapvr.data.manifest import is_training_shard
    from hapvr.progress import ProgressLines
    from hapvr.steps.quality import check_stored
    from hapvr.steps.views import make_views_and_labels

    opened, shard = project.open(), context.partition_key
    selected = {key.to_user_string() for key in context.selected_asset_keys}
    wanted = [name for name in (VIEWS, LABELS) if name in selected]
    if not is_training_shard(opened.root, shard):
        context.log.info(NOT_TRAINING)
        yield from (checks.empty_record(NOT_TRAINING, checks.STORED, asset=name) for name in wanted)
        return
    made = make_views_and_labels(
        opened, shard, outputs=wanted, progress=ProgressLines(context.log.info, "making views and labels")
    )
    for name, result in made.items():
        yield metadata.shard(result, [check_stored(result.shard)], asset=name)
