"""The jobs of the chain, and what starts them automatically: a sensor that makes what is missing,
one that looks for new videos, and the schedule that trains again.

`make demo` runs the jobs up to `index`; `duplicates`, `group` and `watch` are for people and for
the automation. Sensors and schedule start stopped unless `automation.enabled` is set, and can be
switched in the UI.
"""

import hashlib
import json
import time
import warnings
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

import dagster as dg

from assets.factory import described
from assets.project import SHARDS, ProjectResource
from assets.videos import is_unmounted, last_manifest
from hapvr.chain import CHAIN, JOBS
from hapvr.chain.look import Look
from hapvr.data.manifest import CHANGED_PLACE, root_id
from hapvr.errors import HapvrError
from pipelines.monitoring import UNFINISHED
from pipelines.resources import automation_settings, project_resource

if TYPE_CHECKING:
    from hapvr.automation import Job
    from hapvr.steps.pending_training import PendingData
    from hapvr.steps.project import Project

SETTINGS = automation_settings()
ONE_AT_A_TIME = "hapvr/one_at_a_time"
"""dagster.yaml lets one run at a time have each value of this tag."""
ON_REQUEST = ("duplicates", "group", "watch")
EXCLUSIVE: dict[str, str] = {
    "find_videos": "manifest",
    "retrain": "training",
    "index": "index",
    "group": "group",
}
"""Jobs of which only one run at a time makes sense, with the value of their tag."""
SETTLE_S = 30.0
SENSOR_STATUS = (
    dg.DefaultSensorStatus.RUNNING if SETTINGS.enabled else dg.DefaultSensorStatus.STOPPED
)
SCHEDULE_STATUS = (
    dg.DefaultScheduleStatus.RUNNING if SETTINGS.enabled else dg.DefaultScheduleStatus.STOPPED
)

MADE = ~dg.AutomationCondition.missing()
IDLE = ~dg.AutomationCondition.in_progress() & ~dg.AutomationCondition.any_deps_in_progress()
# A missing asset is requested once, as soon as its inputs exist. A failed one waits for a retry or
# for a person. AutomationCondition.on_missing would not do: it ignores what was missing before
# automation was switched on. `in_progress` alone would not do either: for a moment, an asset that a
# run has just made is neither in progress nor there.
ASKED = dg.AutomationCondition.newly_requested().since(
    dg.AutomationCondition.missing().newly_true()
)
MISSING = (
    dg.AutomationCondition.missing()
    & ~ASKED
    & IDLE
    & ~dg.AutomationCondition.any_deps_missing()
    & ~dg.AutomationCondition.execution_failed()
).with_label("missing, inputs are there")
# As long as no shard is registered, no shard is missing either.
WITH_SHARDS = (MISSING & dg.AutomationCondition.any_deps_match(MADE)).with_label(
    "missing, shards are there and have their frames"
)
# Decoding and networks are separate runs, since only the latter take a GPU's turn; pseudo labels do
# not depend on the whitening, but wait for it: one run then makes them with the views, in one pass.
AFTER_WHITENING = (
    MISSING
    & ~dg.AutomationCondition.any_deps_match(dg.AutomationCondition.missing())
    & dg.AutomationCondition.asset_matches("whitening", MADE)
).with_label("missing, inputs and the whitening are there")


def run_tags(job: "Job") -> dict[str, str]:
    """Tags of the runs of a job: how they are retried, and, if configured, what they ask of a Ray
    cluster."""
    tags = {
        "dagster/max_retries": "2",
        "dagster/retry_on_asset_or_op_failure": "true",
        "dagster/retry_strategy": "FROM_FAILURE",
    }
    resources = SETTINGS.run_resources.get(job)
    if resources:
        tags["dagster-ray/config"] = json.dumps(resources)
    if job in EXCLUSIVE:
        tags[ONE_AT_A_TIME] = EXCLUSIVE[job]
    return tags


jobs = {}
for _name, _steps in JOBS.items():
    _assets = [step.name for step in _steps]
    jobs[_name] = dg.define_asset_job(
        _name,
        selection=dg.AssetSelection.assets(*_assets),
        partitions_def=SHARDS if _steps[0].per_shard else None,
        description=" ".join(map(described, _assets)),
        tags=run_tags(_name),
    )
"""The jobs of `hapvr.chain.JOBS` in the order in which they are needed."""


@lru_cache(maxsize=1)
def _outdated(_moment: datetime) -> dict[str, dict[str, str]]:
    """What each step lacks, asked once per tick. A step whose records are damaged is skipped, so
    that the others continue."""
    look = Look(project_resource().open())
    root = root_id(look.project.root)  # what another data root has requested is requested again
    digests: dict[str, dict[str, str]] = {}
    for step in CHAIN.values():
        try:
            lacking = step.lacks(look) or {}
        except HapvrError as error:
            warnings.warn(f"some outdated data is not rebuilt: {error}")
        else:
            digests[step.name] = {key: f"{root} {digest}" for key, digest in lacking.items()}

    return digests


@dataclass(frozen=True)
class Outdated(dg.AutomationCondition):
    """True for what a step lacks, once for each digest: failures wait for a retry or for a
    person."""

    step: str

    @property
    def name(self) -> str:
        return "outdated"

    def evaluate(self, context: dg.AutomationContext) -> dg.AutomationResult:
        wanted = _outdated(context.evaluation_time).get(self.step, {})
        asked: dict[str, str] = json.loads(context.cursor or "{}")
        new = {key for key, digest in wanted.items() if asked.get(key) != digest}
        candidates = context.candidate_subset
        per_shard = CHAIN[self.step].per_shard
        if per_shard:
            candidates = candidates.compute_intersection_with_partition_keys(new)
        elif not new:
            candidates = context.get_empty_subset()

        if not candidates.is_empty:
            chosen = set(candidates.expensively_compute_partition_keys()) if per_shard else {""}
            asked = {
                key: digest
                for key, digest in wanted.items()
                if key in chosen or asked.get(key) == digest
            }

        return dg.AutomationResult(context, candidates, cursor=json.dumps(asked))


# `Outdated` comes last, so that it sees only what nothing else holds back.
OUTDATED = {
    step.name: (IDLE & Outdated(step.name)).with_label(
        "not what its inputs, the champion and the settings ask for"
    )
    for step in CHAIN.values()
    if step.job not in ("find_videos", "whiten", "retrain")
}
CONDITIONS: dict[str, dg.AutomationCondition] = {
    "whitening": WITH_SHARDS,
    **OUTDATED,
}
"""When each asset is made without a person."""
for _step in JOBS["ingest"]:
    CONDITIONS[_step.name] = MISSING | OUTDATED[_step.name]
for _step in JOBS["extract"]:
    CONDITIONS[_step.name] = AFTER_WHITENING | (MADE & OUTDATED[_step.name])


def _most_resources() -> dict[str, str]:
    """Run tags that ask a Ray cluster for the most that any job of these assets needs."""
    tags = run_tags("ingest")
    asked: dict[str, float] = {}
    for step in CONDITIONS:
        for name, amount in SETTINGS.run_resources.get(CHAIN[step].job, {}).items():
            asked[name] = max(amount, asked.get(name, 0.0))

    if asked:
        tags["dagster-ray/config"] = json.dumps(asked)
    return tags


# The sensor evaluates in the code server, as `Outdated` is a condition of ours: that is a beta of
# Dagster's, which says so whenever the definitions are loaded.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.BetaWarning)
    missing_and_outdated = dg.AutomationConditionSensorDefinition(
        "missing_and_outdated",
        target=dg.AssetSelection.assets(*CONDITIONS),
        minimum_interval_seconds=min(SETTINGS.watch_every_s, 60),
        default_status=SENSOR_STATUS,
        run_tags=_most_resources(),
        use_user_code_server=True,
        description="Takes new shards to features, views and labels, and brings index, "
        "duplicates and watch matches up to date with the champion: after new shards, a promotion "
        "or a rollback.",
    )


@dg.sensor(
    name="new_videos",
    jobs=[jobs["find_videos"], jobs["retrain"]],
    minimum_interval_seconds=SETTINGS.watch_every_s,
    default_status=SENSOR_STATUS,
    description="Looks at the sources: new files or rows start `find_videos`; those that "
    "changed are noted. When `automation.retrain_new_videos` training videos have features that "
    "the model has not seen, it starts `retrain`.",
)
def new_videos(
    context: dg.SensorEvaluationContext, project: ProjectResource
) -> dg.RunRequest | dg.SkipReason:
    from hapvr.steps.sources import TICK_PLACE, changed_shards, snapshot_sources

    opened = project.open()
    if is_unmounted(context.instance, opened.root):
        return dg.SkipReason(
            "the data root is empty, and was not: mount its drive, or run find_videos to begin anew"
        )

    offer, unsettled = snapshot_sources(opened, settle_s=SETTLE_S)
    opened.root.write_json(TICK_PLACE, {"time_s": time.time()})
    if unsettled:
        return dg.SkipReason(
            f"{len(unsettled)} files are still being written, e.g. {unsettled[0].name}"
        )

    before, made_by = last_manifest(context.instance, opened.root) or (None, "")
    opened.root.write_json(CHANGED_PLACE, changed_shards(opened))
    if offer == before:
        return _retrain_if_due(context.instance, opened)

    running = _running(context.instance, "find_videos")
    if running:
        return dg.SkipReason(f"run {running} is making the manifest")
    # Sources may come back to an earlier state, what failed is tried again each hour, and Dagster
    # takes a key once.
    hour = f"{time.time() // 3600:.0f}"
    return dg.RunRequest(job_name="find_videos", run_key=f"{offer}/{made_by}/{hour}")


def _retrain_if_due(
    instance: dg.DagsterInstance, project: "Project"
) -> dg.RunRequest | dg.SkipReason:
    """Request a training if enough videos are new to the model and no training runs."""
    from hapvr.steps.pending_training import pending_data

    pending = pending_data(project)
    wanted = project.config.automation.retrain_new_videos
    if pending.num_videos < wanted:
        return dg.SkipReason(
            f"the manifest has all videos; {pending.num_videos} of {wanted} are new to the model"
        )
    if pending.awaited:
        return _awaiting(pending)
    running = _running(instance, "retrain")
    if running:
        return dg.SkipReason(f"run {running} is re-training")
    # A digest: run keys are indexed, and PostgreSQL refuses to index a list of hundreds of shards.
    key = hashlib.sha256(",".join(pending.shards).encode()).hexdigest()
    tags = {"hapvr/new_videos": str(pending.num_videos)}
    return dg.RunRequest(job_name="retrain", run_key=key, tags=tags)


@dg.schedule(
    name="retrain_on_schedule",
    job=jobs["retrain"],
    cron_schedule=SETTINGS.retrain_cron,
    execution_timezone=SETTINGS.timezone,
    default_status=SCHEDULE_STATUS,
    description="Starts `retrain` on all data. It skips while a training runs, and if "
    "nothing has changed since the last one.",
)
def retrain_on_schedule(
    context: dg.ScheduleEvaluationContext, project: ProjectResource
) -> dg.RunRequest | dg.SkipReason:
    from hapvr.steps.pending_training import pending_data

    running = _running(context.instance, "retrain")
    if running:
        return dg.SkipReason(f"run {running} is still re-training")
    pending = pending_data(project.open())
    if pending.is_empty:
        return dg.SkipReason("no new videos or settings: training would give the same model again")
    if pending.awaited:
        return _awaiting(pending)
    return dg.RunRequest(run_key=context.scheduled_execution_time.isoformat())


def _awaiting(pending: "PendingData") -> dg.SkipReason:
    return dg.SkipReason(
        f"{len(pending.awaited)} shards of the benchmarks have no features yet, e.g. "
        f"{pending.awaited[0]}; if they do not come, see the runs of their assets"
    )


def _running(instance: dg.DagsterInstance, job: "Job") -> str | None:
    """Id of an unfinished run of a job."""
    runs = instance.get_runs(dg.RunsFilter(job_name=job, statuses=UNFINISHED), limit=1)
    return runs[0].run_id if runs else None


schedules = [retrain_on_schedule]
sensors: list[dg.SensorDefinition] = [new_videos, missing_and_outdated]
