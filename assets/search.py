"""Search: descriptors of all frames by the champion, and the index over them."""

import dagster as dg

from assets import checks, metadata
from assets.factory import Made, step_asset

RECALL = "recall"
INDEX_CHECKS = {RECALL: "Stored vectors that are searched for find their exact nearest neighbours."}
HINT = (
    "Nothing is lost: the index before this one keeps answering if there is one. Raise search.index.probed_lists, "
    "refine_factor or code_bits, and materialise the asset again."
)


def _show_descriptors(made: Made) -> dg.MaterializeResult:
    kept = int(made.result.shard.index()["num_kept"].sum())
    return metadata.shard(made.result, more={"model": _champion(made), "frames_kept": kept})


frame_descriptors = step_asset("frame_descriptors", _show_descriptors, group="search", kinds={"pytorch", "parquet"})


def _show_index(made: Made) -> dg.MaterializeResult:
    from hapvr.search.index import MIN_RECALL

    update, project = made.result, made.project
    place = update.serving.place if update.serving is not None else "none"
    return dg.MaterializeResult(
        metadata={
            "model": _champion(made),
            "dagster/row_count": update.status.frames,
            "videos": update.status.videos,
            "unindexed_frames": update.status.unindexed_frames,
            "fragments": update.status.fragments,
            "recall": update.recall,
            **{name: dg.MetadataValue.json(keys) for name, keys in update.shards.items()},
            "answers": update.passed,
            "path": dg.MetadataValue.path(f"{project.root.url}/{place}"),
            "digest": update.status.digest,
            "was_finished": not update.done,
        },
        data_version=dg.DataVersion(update.status.digest),
        check_results=[
            checks.result(RECALL, update.passed, HINT, severity="error", recall=update.recall, wanted=MIN_RECALL)
        ],
    )


def _champion(made: Made) -> str:
    from hapvr.registry.client import pinned_uri

    return pinned_uri(f"models:/{made.project.config.tracking.registered_model}@champion", made.project.tracking_uri)


search_index = step_asset(
    "search_index",
    _show_index,
    group="search",
    kinds={"lance"},
    checks=checks.specs("search_index", INDEX_CHECKS),
)
