"""Training data: augmented views as features, and the teacher's pseudo labels of the same views."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets import checks, metadata
from assets.factory import dependencies, described
from assets.project import DATA_TEAM, GPU_POOL, SHARDS, ProjectResource

if TYPE_CHECKING:
    from hapvr.data.shard_build import StageResult

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
    from hapvr.steps.pictures import views_sheet
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
    if VIEWS in made:
        sheet = views_sheet(opened, shard)
        yield _made(VIEWS, made[VIEWS], {"views": metadata.image(sheet[0], rows=sheet[1])} if sheet else {})
    if LABELS in made:
        yield _made(LABELS, made[LABELS], {})


def _made(name: str, result: "StageResult", more: dict[str, Any]) -> dg.MaterializeResult:
    from hapvr.steps.quality import check_stored

    return metadata.shard(result, [check_stored(result.shard)], asset=name, more=more)
