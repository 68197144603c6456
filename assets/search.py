"""Search: descriptors of all frames by the champion, the index over them, and watch lists, with
which every shard is compared."""

import dagster as dg

from assets import checks, metadata
from assets.factory import Made, step_asset

RECALL = "recall"
HINT = (
    "Nothing is lost: the index before this one keeps answering if there is one. Raise "
    "search.index.probed_lists, refine_factor or code_bits, and materialise the asset again."
)
USABLE = "queries_usable"
DELIVERED = "alerts_delivered"
REPLACE = (
    "The other queries were compared. Replace or remove these, and materialise the asset again."
)
WAIT = (
    "Nothing is lost: matches wait in watch/outbox.db. `hapvr watch` posts them; so does "
    "the sensor waiting_alerts."
)


def _show_descriptors(made: Made) -> dg.MaterializeResult:
    kept = int(made.result.shard.index()["num_kept"].sum())
    return metadata.shard(made.result, more={"model": _model(made), "frames_kept": kept})


frame_descriptors = step_asset(
    "frame_descriptors", _show_descriptors, group="search", kinds={"pytorch", "parquet"}
)


def _show_index(made: Made) -> dg.MaterializeResult:
    from hapvr.search.frame_index import MIN_RECALL

    update = made.result
    place = update.serving.place if update.serving is not None else "none"
    changed_shards = {name: dg.MetadataValue.json(keys) for name, keys in update.shards.items()}
    return dg.MaterializeResult(
        metadata={
            "model": _model(made),
            "dagster/row_count": update.status.frames,
            "videos": update.status.videos,
            "unindexed_frames": update.status.unindexed_frames,
            "fragments": update.status.fragments,
            "recall": update.recall,
            **changed_shards,
            "answers": update.passed,
            "path": dg.MetadataValue.path(f"{made.project.root.url}/{place}"),
            "digest": update.status.digest,
            "was_finished": not update.done,
        },
        data_version=dg.DataVersion(update.status.digest),
        check_results=[
            checks.result(
                RECALL,
                update.passed,
                HINT,
                severity="error",
                recall=update.recall,
                wanted=MIN_RECALL,
            )
        ],
    )


def _model(made: Made) -> str:
    from hapvr.steps.search_model import default_model_name

    return default_model_name(made.project)


search_index = step_asset(
    "search_index",
    _show_index,
    group="search",
    kinds={"lance"},
    checks={RECALL: "Stored vectors that are searched for find their exact nearest neighbours."},
)


def _show_matches(made: Made) -> dg.MaterializeResult:
    import polars as pl

    from hapvr.steps.alerts import deliver_alerts
    from hapvr.steps.shard_rows import rows_place
    from hapvr.steps.watch_lists import STAGE

    matches = made.result
    delivery = deliver_alerts(made.project)
    stored = metadata.stored(made.project.root, rows_place(STAGE, made.key))
    shown = pl.DataFrame(matches.table).drop("query_sha256", "video_sha256")
    table = shown.sort("probability", descending=True)
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
            checks.result(
                DELIVERED,
                not delivery.problem,
                WAIT,
                problem=delivery.problem,
                waiting=delivery.waiting,
            ),
        ],
    )


watch_matches = step_asset(
    "watch_matches",
    _show_matches,
    group="search",
    kinds={"pytorch", "parquet"},
    checks={
        USABLE: "Every query of the watch lists could be read and shows something.",
        DELIVERED: "The webhook has taken all messages, if there is one.",
    },
)
