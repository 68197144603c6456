"""Training data: augmented views as features, and the teacher's pseudo labels of the same views."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets import checks, metadata
from assets.factory import dependencies
from assets.partitions import GPU_POOL, SHARDS
from assets.project import DATA_TEAM, ProjectResource

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
            VIEWS,
            deps=dependencies(VIEWS),
            kinds={"pytorch", "parquet"},
            owners=[DATA_TEAM],
            skippable=True,
            metadata=metadata.columns(
                {
                    "video_id": "string: a row per view; the views of a video are contiguous",
                    "view_index": "int32: from 0 within the video; weak views come first",
                    "strength": "string: weak or strong",
                    "operations": "string: JSON list of what was done to the clip",
                    "donor_id": "string: the video that was put into the picture, else empty",
                    "source_index": "list<int32>: the video's frame that each of the T frames shows",
                    "regions": "fixed_size_binary: [T, 9, whitening.dims] float16, unit vectors",
                }
            ),
            description=(
                "Region features [T, 9, D] of weakly and strongly augmented clips of every training video, and what was "
                "done to them. A shard that is not of the training split gets an empty record."
            ),
        ),
        dg.AssetSpec(
            LABELS,
            deps=dependencies(LABELS),
            kinds={"pytorch", "parquet"},
            owners=[DATA_TEAM],
            skippable=True,
            metadata=metadata.columns(
                {
                    "video_id": "string: a row per pair of views of the video",
                    "query_view": "int32: view_index of the rows of the label matrix",
                    "reference_view": "int32: view_index of its columns",
                    "labels": "fixed_size_binary: [T, T] int8: 1 the same content, -1 other content, 0 not used",
                }
            ),
            description=(
                "The teacher's embeddings [T, D'] of the same views and ternary frame labels of all view pairs of a "
                "video. A shard that is not of the training split gets an empty record."
            ),
        ),
    ],
    check_specs=[*checks.specs(VIEWS, checks.STORED), *checks.specs(LABELS, checks.STORED)],
)
def training_data(context: dg.AssetExecutionContext, project: ProjectResource) -> Iterator[dg.MaterializeResult]:
    from hapvr.data.manifest import is_training_shard
    from hapvr.data.views import operations_table
    from hapvr.progress import ProgressLines
    from hapvr.steps.views import label_rates, make_views_and_labels

    opened, shard = project.open(), context.partition_key
    selected = {key.to_user_string() for key in context.selected_asset_keys}
    wanted = [name for name in (VIEWS, LABELS) if name in selected]
    if not is_training_shard(opened.root, shard):
        context.log.info(NOT_TRAINING)
        yield from map(_empty, wanted)
        return
    made = make_views_and_labels(
        opened, shard, outputs=wanted, progress=ProgressLines(context.log.info, "making views and labels")
    )
    if VIEWS in made:
        yield _made(VIEWS, made[VIEWS], {"operations": metadata.table(operations_table(made[VIEWS].shard))})
    if LABELS in made:
        rates = dg.MetadataValue.json(label_rates(made[LABELS].shard))
        yield _made(LABELS, made[LABELS], {"label_rates": rates})


def _made(name: str, result: "StageResult", more: dict[str, Any]) -> dg.MaterializeResult:
    from hapvr.steps.quality import check_stored

    return metadata.shard(result, [check_stored(result.shard)], asset=name, more=more)


def _empty(name: str) -> dg.MaterializeResult:
    """The record of a shard for which there is nothing to make. Its check passes."""
    return dg.MaterializeResult(
        asset_key=name,
        metadata={"dagster/row_count": 0, "reason": NOT_TRAINING},
        data_version=dg.DataVersion("nothing"),
        check_results=[
            dg.AssetCheckResult(check_name=check, asset_key=name, passed=True, description=NOT_TRAINING)
            for check in checks.STORED
        ],
    )
