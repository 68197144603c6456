"""Duplicates: pairs of videos that share footage, and groups of copies. No file is ever touched."""

import dagster as dg

from assets import checks, metadata
from assets.factory import NOT_IN_COLLECTION, Made, chain_asset, progress_lines, step_asset
from assets.project import ProjectResource
from hapvr.chain import CHAIN
from hapvr.chain.step import shards_of

CALIBRATED = "calibrated"
COMPLETE = "all_shards_compared"
CALIBRATE = (
    "Only files of the same bytes are pairs until then. Register a model with a validation "
    "benchmark of five queries or more, bring the index up to date, and materialise the asset "
    "again."
)
COMPARE = (
    "Groups lack pairs of these shards. Materialise duplicate_pairs for them, then this asset "
    "again."
)


@chain_asset(
    "duplicate_pairs",
    group="search",
    kinds={"pytorch", "parquet"},
    checks={CALIBRATED: "The model of the index says how sure it is of a match."},
)
def duplicate_pairs(
    context: dg.AssetExecutionContext, project: ProjectResource
) -> dg.MaterializeResult:
    import polars as pl

    from hapvr.data.stamped import read_rows
    from hapvr.search.duplicates import PAIR_SCHEMA
    from hapvr.steps.duplicate_pairs import PAIRS_STAGE, make_duplicate_pairs
    from hapvr.steps.searcher import UNSURE, Searcher
    from hapvr.steps.shard_rows import rows_place

    opened = project.open()
    if context.partition_key not in shards_of(opened, CHAIN["duplicate_pairs"]):
        return checks.empty_record(NOT_IN_COLLECTION, [CALIBRATED])
    searcher = Searcher.open(opened)
    if searcher.evidence is None:
        return dg.MaterializeResult(
            metadata={"dagster/row_count": 0, "reason": UNSURE},
            check_results=[checks.result(CALIBRATED, False, CALIBRATE)],
        )

    progress = progress_lines(context.log.info, "searching for videos")
    done = make_duplicate_pairs(opened, searcher, context.partition_key, progress=progress)
    place = rows_place(PAIRS_STAGE, context.partition_key)
    stored = metadata.stored(opened.root, place)
    pairs = pl.DataFrame(read_rows(opened.root, place, PAIR_SCHEMA))
    table = pairs.sort("probability", descending=True)
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(table),
            "model": searcher.current.model,
            "kinds": metadata.table(table.group_by("kind").len("pairs").sort("kind")),
            "surest_pairs": metadata.table(table.drop("first_sha256", "second_sha256", "mark")),
            **stored,
            "was_finished": not done,
        },
        data_version=dg.DataVersion(stored["digest"]),
        check_results=[checks.result(CALIBRATED, True, CALIBRATE)],
    )


def _show_groups(made: Made) -> dg.MaterializeResult:
    import polars as pl

    from hapvr.search.duplicates import GROUPS_PLACE, group_rows
    from hapvr.search.plan import needless
    from hapvr.steps.duplicate_pairs import outdated_pairs

    members = made.result
    opened = made.project
    awaited = sorted(outdated_pairs(opened))
    groups = {member.group for member in members}
    sure_groups = {member.group for member in members if member.keep}
    not_needed = needless([member for member in members if member.group in sure_groups])
    stored = metadata.stored(opened.root, GROUPS_PLACE)
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(members),
            "groups": len(groups),
            "unsure_groups": len(groups - sure_groups),
            "videos_more_than_needed": len(not_needed),
            "bytes_more_than_needed": sum(member.metadata.num_bytes for member in not_needed),
            "min_probability": opened.config.search.min_duplicate_probability,
            "members": metadata.table(pl.DataFrame(group_rows(members)).drop("path", "sha256")),
            **stored,
        },
        data_version=dg.DataVersion(stored["digest"]),
        check_results=[checks.result(COMPLETE, not awaited, COMPARE, awaited=awaited)],
    )


duplicate_groups = step_asset(
    "duplicate_groups",
    _show_groups,
    group="search",
    kinds={"parquet"},
    checks={COMPLETE: "Every shard of the index was searched for by the model that answers now."},
)
