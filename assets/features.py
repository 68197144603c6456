"""Features: whitening, whitened region features of whole videos and of augmented views, and the
teacher's labels of the views."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets import checks, metadata
from assets.factory import Made, dependencies, described, progress_lines, step_asset
from assets.project import DATA_TEAM, GPU_POOL, SHARDS, ProjectResource
from hapvr.chain import CHAIN

if TYPE_CHECKING:
    from hapvr.steps.project import Project

VIEWS = "training_views"
LABELS = "pseudo_labels"
COMPARED_AS_THEY_ARE = (
    "Vectors of this network are compared as they are, so nothing had to be fitted."
)
NOT_TRAINING = "This shard is not of the training split, so there is nothing to make."


def _show_whitening(made: Made) -> dg.MaterializeResult:
    from hapvr.networks.whitening import WEIGHTS_NAME

    result = made.result
    num_regions = int(result.provenance.environment["num_regions"])
    weights = str(result.provenance.settings.get("backbone", {}).get("source", "imported"))
    entries: dict[str, Any] = {
        "dims": result.whitening.dims,
        "regions": num_regions,
        "backbone_weights": weights,
        "path": dg.MetadataValue.path(f"{made.project.root.url}/{WEIGHTS_NAME}"),
        "digest": result.whitening.sha256,
        "was_finished": not result.done,
        "fitted_on": dg.MetadataValue.json(dict(result.provenance.inputs)),
    }
    if not num_regions and weights != "imported":
        entries["reason"] = COMPARED_AS_THEY_ARE

    return dg.MaterializeResult(
        metadata=entries, data_version=dg.DataVersion(result.whitening.sha256)
    )


whitening = step_asset("whitening", _show_whitening, group="features", kinds={"pytorch"})


def _show_features(made: Made) -> dg.MaterializeResult:
    from hapvr.steps.quality import check_features

    return metadata.shard(made.result, check_features(made.project, made.key))


features = step_asset(
    "features",
    _show_features,
    group="features",
    kinds={"pytorch", "parquet"},
    checks=checks.FEATURES,
)


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
def training_data(
    context: dg.AssetExecutionContext, project: ProjectResource
) -> Iterator[dg.MaterializeResult]:
    opened = project.open()
    shard = context.partition_key
    selected = {key.to_user_string() for key in context.selected_asset_keys}
    wanted = []
    for name in (VIEWS, LABELS):
        if name not in selected:
            continue
        reason = _nothing_reason(opened, shard, name)
        if not reason:
            wanted.append(name)
            continue

        context.log.info(f"{name}: {reason}")
        yield checks.empty_record(reason, checks.STORED, asset=name)

    if not wanted:
        return

    from hapvr.steps.quality import check_stored
    from hapvr.steps.views import make_views_and_labels  # loads torch, which others do without

    results = make_views_and_labels(
        opened,
        shard,
        outputs=wanted,
        progress=progress_lines(context.log.info, "making views and labels"),
    )
    for name, result in results.items():
        yield metadata.shard(result, [check_stored(result.shard)], asset=name)


def _nothing_reason(project: "Project", shard: str, name: str) -> str:
    """Why nothing is made from a shard for training; "" if something is."""
    from hapvr.data.manifest import is_training_shard

    if not is_training_shard(project.root, shard):
        return NOT_TRAINING
    unused = CHAIN[name].unused_reason(project)
    return f"Nothing is made: {unused}." if unused else ""
