"""Duplicates: pairs of videos that share footage, and groups of copies. No file is ever touched."""

import dagster as dg

from assets import checks, metadata
from assets.factory import dependencies
from assets.partitions import GPU_POOL, SHARDS
from assets.project import DATA_TEAM, ProjectResource

CALIBRATED = "calibrated"
COMPLETE = "all_shards_compared"
CALIBRATE = (
    "Only files of the same bytes are pairs until then. Register a model that was evaluated on a validation benchmark with "
    "ten matches or more, bring the index up to date, and materialise the asset again."
)
COMPARE = "Groups lack pairs of these shards. Materialise duplicate_pairs for them, then this asset again."


@dg.asset(
    group_name="search",
    kinds={"pytorch", "parquet"},
    pool=GPU_POOL,
    partitions_def=SHARDS,
    deps=dependencies("duplicate_pairs"),
    owners=[DATA_TEAM],
    check_specs=checks.specs("duplicate_pairs", {CALIBRATED: "The model of the index says how sure it is of a match."}),
    metadata=metadata.columns(
        {
            "first": "string: the video whose id comes first",
            "second": "string",
            "first_sha256": "string: of the file that was compared",
            "second_sha256": "string: of the file that was compared",
            "similarity": "double: of the network, in [-1, 1]",
            "probability": "double: of a match, 0.5 or more",
            "first_covered": "double: part of the first video that the second shows",
            "second_covered": "double: part of the second video that the first shows",
            "first_start_s": "double: where the surest common part begins",
            "second_start_s": "double: where the surest common part begins",
            "mark": "string: empty; marks are read when pairs are",
            "kind": "string: copy, contained, overlap or same_incident",
        }
    ),
    description=(
        "Every video of the shard is searched for in the whole collection. A new shard finds its pairs with all older ones, so "
        "these stand; a shard is searched again when it was made again, or when model or search settings change."
    ),
)
def duplicate_pairs(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    import polars as pl

    from hapvr.progress import ProgressLines
    from hapvr.search.duplicates import pair_table
    from hapvr.steps.duplicates import make_duplicate_pairs
    from hapvr.steps.searcher import UNCALIBRATED, Searcher

    opened = project.open()
    searcher = Searcher.open(opened)
    if searcher.scorer.calibration is None:
        return dg.MaterializeResult(
            metadata={"dagster/row_count": 0, "reason": UNCALIBRATED},
            check_results=[checks.warning(CALIBRATED, passed=False, hint=CALIBRATE)],
        )
    progress = ProgressLines(context.log.info, "searching for videos")
    made = make_duplicate_pairs(opened, searcher, context.partition_key, progress=progress)
    digest = opened.root.sha256(made.place)
    table = pl.DataFrame(pair_table(made.pairs)).sort("probability", descending=True)
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(made.pairs),
            "model": searcher.current.model,
            "kinds": metadata.table(table.group_by("kind").len("pairs").sort("kind")),
            "surest_pairs": metadata.table(table.drop("first_sha256", "second_sha256", "mark")),
            "path": dg.MetadataValue.path(f"{opened.root.url}/{made.place}"),
            "digest": digest,
            "was_finished": not made.done,
        },
        data_version=dg.DataVersion(digest),
        check_results=[checks.warning(CALIBRATED, passed=True, hint=CALIBRATE)],
    )


@dg.asset(
    group_name="search",
    kinds={"parquet"},
    deps=dependencies("duplicate_groups"),
    owners=[DATA_TEAM],
    check_specs=checks.specs(
        "duplicate_groups", {COMPLETE: "Every shard of the index was searched for by the model that answers now."}
    ),
    metadata=metadata.columns(
        {
            "group": "string: stable name, from the smallest digest of the members",
            "video_id": "string",
            "medoid": "bool: the member that all others are copies of",
            "keep": "bool: the copy to keep; nothing is deleted",
            "reason": "string: why it is the one to keep, or what the kept one has more",
            "similarity": "double: to the medoid",
            "path": "string: of the file",
            "sha256": "string: of the file",
            "num_bytes": "int64: of the file",
            "duration_s": "double: as the file says",
            "width_px": "int32: as the file says",
            "height_px": "int32: as the file says",
            "codec": "string: as the file says",
        }
    ),
    description=(
        "Copies, grouped around medoids so that no chain of look-alikes ties strangers together, and which copy to keep and why. "
        "Marks of people decide over the model."
    ),
)
def duplicate_groups(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    import polars as pl

    from hapvr.search.duplicates import group_rows
    from hapvr.steps.duplicates import GROUPS_PLACE, make_duplicate_groups, outdated_duplicates
    from hapvr.steps.searcher import Searcher

    opened = project.open()
    searcher = Searcher.open(opened)
    members = make_duplicate_groups(opened, searcher)
    awaited = sorted(outdated_duplicates(opened).uncompared)
    others = [member for member in members if not member.keep]
    digest = opened.root.sha256(GROUPS_PLACE)
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(members),
            "groups": len(members) - len(others),
            "videos_more_than_needed": len(others),
            "bytes_more_than_needed": sum(member.metadata.num_bytes for member in others),
            "min_probability": opened.config.search.min_duplicate_probability,
            "members": metadata.table(pl.DataFrame(group_rows(members)).drop("path", "sha256")),
            "path": dg.MetadataValue.path(f"{opened.root.url}/{GROUPS_PLACE}"),
            "digest": digest,
        },
        data_version=dg.DataVersion(digest),
        check_results=[checks.warning(COMPLETE, passed=not awaited, hint=COMPARE, awaited=awaited)],
    )
