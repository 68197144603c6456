"""The jobs of the chain (`hapvr.chain.JOBS`) in the order in which they are needed.

`make demo` runs them up to `index`; `duplicates`, `group` and `watch` are for people and for the automation.
"""

import json
from typing import TYPE_CHECKING

import dagster as dg

from assets.project import SHARDS
from hapvr.chain import JOBS
from pipelines.resources import automation_settings

if TYPE_CHECKING:
    from hapvr.config import Job

SETTINGS = automation_settings()
ONE_AT_A_TIME = "hapvr/one_at_a_time"
"""dagster.yaml lets one run at a time have each value of this tag."""
DESCRIPTIONS = {
    "find_videos": "New videos of the sources become new shards.",
    "ingest": "A shard from its sources to sampled frames; a finished shard is left alone.",
    "whiten": "The whitening of all features, fitted once, when the training shards have their frames.",
    "extract": "A shard from frames to features, and a training shard to views and pseudo labels; a finished one is left alone.",
    "retrain": "From all training data to a registered version, which the gate compares with the champion.",
    "describe": "Descriptors of a shard's frames by the champion; a shard that has them is left alone.",
    "index": "The index of all that has features, by the champion; what has no descriptors yet gets them.",
    "duplicates": "Every video of a shard is searched for in the whole collection; a shard that is unchanged is left alone.",
    "group": "Groups of copies over the pairs of all shards, and which copy to keep.",
    "watch": "The queries of all watch lists are compared with a shard; matches are rows, and posted to a webhook if there is one.",
}
MAX_RETRIES = "2"
ON_REQUEST = ("duplicates", "group", "watch")
EXCLUSIVE: dict[str, str] = {"find_videos": "manifest", "retrain": "training", "index": "index", "group": "group"}
"""Jobs of which one run at a time makes sense, with the value of their tag."""


def run_tags(job: "Job") -> dict[str, str]:
    """Tags of the runs of a job: how they are retried, and what they ask of a Ray cluster if the configuration says so."""
    tags = {
        "dagster/max_retries": MAX_RETRIES,
        "dagster/retry_on_asset_or_op_failure": "true",
        "dagster/retry_strategy": "FROM_FAILURE",
    }
    if wanted := SETTINGS.run_resources.get(job):
        tags["dagster-ray/config"] = json.dumps(wanted)
    if job in EXCLUSIVE:
        tags[ONE_AT_A_TIME] = EXCLUSIVE[job]
    return tags


jobs = {
    name: dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*(step.name for step in steps)),
        partitions_def=SHARDS if steps[0].per_shard else None,
        description=DESCRIPTIONS[name],
        tags=run_tags(name),
    )
    for name, steps in JOBS.items()
}
