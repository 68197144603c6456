"""Watch lists: queries that every shard is compared with."""

import dagster as dg

from assets import checks, metadata
from assets.factory import Made, step_asset

USABLE, DELIVERED = "queries_usable", "alerts_delivered"
CHECKS = {
    USABLE: "Every query of the watch lists could be read and shows something.",
    DELIVERED: "The webhook has taken all messages, if there is one.",
}
REPLACE = "The other queries were compared. Replace or remove these, and materialise the asset again."
WAIT = "Nothing is lost: matches wait in watch/outbox.db. `hapvr watch` posts them; so does the sensor waiting_alerts."


def _show_matches(made: Made) -> dg.MaterializeResult:
    import polars as pl

    from hapvr.steps.alerts import deliver_alerts
    from hapvr.steps.duplicates import rows_place
    from hapvr.steps.watch_lists import STAGE

    matches, delivery = made.result, deliver_alerts(made.project)
    stored = metadata.stored(made.project.root, rows_place(STAGE, made.key))
    table = pl.DataFrame(matches.table).drop("query_sha256", "video_sha256").sort("probability", descending=True)
    return dg.MaterializeResult(
        metadata={
            "dagster/row_count": len(table),
            "matches": metadata.table(table),
            "new_alerts": matches.announced,
            "was_finished": not matches.done,
            **stored,
        },
        data_version=dg.DataVersion(stored["digest"]),
        check_results=[
            checks.result(USABLE, not matches.failed, REPLACE, failed=matches.failed),
            checks.result(DELIVERED, not delivery.problem, WAIT, problem=delivery.problem, waiting=delivery.waiting),
        ],
    )


watch_matches = step_asset(
    "watch_matches",
    _show_matches,
    group="search",
    kinds={"pytorch", "parquet"},
    checks=checks.specs("watch_matches", CHECKS),
)
