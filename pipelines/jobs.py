"""The jobs of the chain (`hapvr.chain.JOBS`) in the order in which they are needed.

`make demo` runs them up to `index`; `duplicates`, `group` and `watch` are for people and for the automation.
"""

import json
from typing import TYPE_CHECKING

import dagster as dg

from assets.factory import described
from assets.project import SHARDS
from hapvr.chain import JOBS
from pipelines.resources import automation_settings

if TYPE_CHECKING:
    from hapvr.config import Job

SETTINGS = automation_settings()
ONE_AT_A_TIME = "hapvr/one_at_a_time"
"""dagster.yaml lets one run at a time have each value of this tag."""
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
        description=" ".join(described(step.name) for step in steps),
        tags=run_tags(name),
    )
    for name, steps in JOBS.items()
}
