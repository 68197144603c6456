"""Watch lists: queries that every shard is compared with."""

import dagster as dg

from assets import checks, metadata
from assets.factory import dependencies
from assets.partitions import GPU_POOL, SHARDS
from assets.project import DATA_TEAM, ProjectResource

USABLE, DELIVERED = "queries_usable", "alerts_delivered"
CHECKS = {
    USABLE: "Every query of the watch lists could be read and shows something.",
    DELIVERED: "The webhook has taken all matches, if there is one.",
}
REPLACE = "The other queries were compared. Replace or remove these, and materialise the asset again."
WAIT = "Nothing is lost: matches wait in watch/outbox.db. `hapvr watch` posts them; so does the sensor waiting_alerts."


@dg.asset(
    group_name="search",
    kinds={"pytorch", "parquet"},
    pool=GPU_POOL,
    partitions_def=SHARDS,
    deps=dependencies("watch_matches"),
    owners=[DATA_TEAM],
    check_specs=checks.specs("watch_matches", CHECKS),
    description="The queries of all watch lists, compared with the shard; matches are posted to the webhook if there is one.",
)
def watch_matches(context: dg.AssetExecutionContext, project: ProjectResource) -> dg.MaterializeResult:
    import polars as pl

    from hapvr.progress import ProgressLines
    from hapvr.steps.alerts import deliver_alerts
    from hapvr.steps.searcher import Searcher
    from hapvr.steps.watch_lists import make_watch_matches

    opened = project.open()
    progress = ProgressLines(context.log.info, "comparing queries")
    made = make_watch_matches(opened, Searcher.open(opened), context.partition_key, progress=progress)
    delivery = deliver_alerts(opened)
    stored = metadata.stored(opened.root, made.place)
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(made.table),
            "matches": metadata.table(
                pl.DataFrame(made.table).drop("query_sha256", "video_sha256").sort("probability", descending=True)
            ),
            "new_alerts": made.announced,
            **stored,
            "was_finished": not made.done,
        },
        data_version=dg.DataVersion(stored["digest"]),
        check_results=[
            checks.warning(USABLE, passed=not made.failed, hint=REPLACE, failed=made.failed),
            checks.warning(
                DELIVERED,
                passed=not delivery.problem,
                hint=WAIT,
                problem=delivery.problem,
                waiting=delivery.waiting,
            ),
        ],
    )
