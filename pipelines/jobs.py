"""Jobs in the order in which they are needed: find_videos, ingest, whiten, extract, retrain, describe, index.

Those that `make demo` leaves to people come after: duplicates, group, watch.
"""

import json
from typing import TYPE_CHECKING

import dagster as dg

from assets.partitions import SHARDS
from assets.project import RETRY_WAIT_TAG
from pipelines.resources import automation_settings

if TYPE_CHECKING:
    from hapvr.config import Job

SETTINGS = automation_settings()
# dagster.yaml lets one run at a time have each value of this tag.
ONE_AT_A_TIME = "hapvr/one_at_a_time"
INGESTED = ("videos", "frames")
EXTRACTED = ("features", "training_views", "pseudo_labels")
DESCRIBED = ("frame_descriptors",)
RETRAINED = ("similarity_model", "benchmark_scores", "registered_model")


def run_tags(job: "Job") -> dict[str, str]:
    """Tags of the runs of a job: how they are retried, and what they ask of a Ray cluster if the configuration says so."""
    tags = {
        "dagster/max_retries": str(SETTINGS.max_retries),
        "dagster/retry_on_asset_or_op_failure": "true",
        "dagster/retry_strategy": "FROM_FAILURE",
    }
    if wanted := SETTINGS.run_resources.get(job):
        tags["dagster-ray/config"] = json.dumps(wanted)
    return tags


find_videos = dg.define_asset_job(
    "find_videos",
    selection=dg.AssetSelection.assets("video_manifest"),
    description="New videos of the sources become new shards.",
    tags=run_tags("find_videos") | {ONE_AT_A_TIME: "manifest"},
)
ingest = dg.define_asset_job(
    "ingest",
    selection=dg.AssetSelection.assets(*INGESTED),
    partitions_def=SHARDS,
    description="A shard from its sources to sampled frames; a finished shard is left alone.",
    tags=run_tags("ingest"),
)
whiten = dg.define_asset_job(
    "whiten",
    selection=dg.AssetSelection.assets("whitening"),
    description="The whitening of all features, fitted once, when the training shards have their frames.",
    tags=run_tags("whiten"),
)
extract = dg.define_asset_job(
    "extract",
    selection=dg.AssetSelection.assets(*EXTRACTED),
    partitions_def=SHARDS,
    description="A shard from frames to features, and a training shard to views and pseudo labels; a finished one is left alone.",
    tags=run_tags("extract"),
)
retrain = dg.define_asset_job(
    "retrain",
    selection=dg.AssetSelection.assets(*RETRAINED),
    description="From all training data that is there to a registered version, which the gate compares with the champion.",
    tags=run_tags("retrain") | {ONE_AT_A_TIME: "training", RETRY_WAIT_TAG: str(SETTINGS.retry_wait_s)},
)
describe = dg.define_asset_job(
    "describe",
    selection=dg.AssetSelection.assets(*DESCRIBED),
    partitions_def=SHARDS,
    description="Descriptors of a shard's frames by the champion; a shard that has them is left alone.",
    tags=run_tags("describe"),
)
index = dg.define_asset_job(
    "index",
    selection=dg.AssetSelection.assets("search_index"),
    description="The index of all that has features, by the champion; what has no descriptors yet gets them.",
    tags=run_tags("index") | {ONE_AT_A_TIME: "index"},
)
duplicates = dg.define_asset_job(
    "duplicates",
    selection=dg.AssetSelection.assets("duplicate_pairs"),
    partitions_def=SHARDS,
    description="Every video of a shard is searched for in the whole collection; a shard that is unchanged is left alone.",
    tags=run_tags("duplicates"),
)
group = dg.define_asset_job(
    "group",
    selection=dg.AssetSelection.assets("duplicate_groups"),
    description="Groups of copies over the pairs of all shards, and which copy to keep.",
    tags=run_tags("group") | {ONE_AT_A_TIME: "group"},
)
watch = dg.define_asset_job(
    "watch",
    selection=dg.AssetSelection.assets("watch_matches"),
    partitions_def=SHARDS,
    description="The queries of all watch lists are compared with a shard; matches are rows, and posted to a webhook if there is one.",
    tags=run_tags("watch"),
)
jobs = [find_videos, ingest, whiten, extract, retrain, describe, index]
on_request = [duplicates, group, watch]
