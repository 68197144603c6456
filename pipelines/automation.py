"""What runs by itself: sensors for new videos, new shards and new training data; the schedule that re-trains.

All of it starts stopped unless `automation.enabled` is set, and can be switched in the UI.
"""

import hashlib
from typing import TYPE_CHECKING

import dagster as dg

from assets.partitions import SHARDS
from assets.project import ProjectResource
from pipelines.jobs import (
    EXTRACTED,
    INGESTED,
    describe,
    duplicates,
    find_videos,
    group,
    index,
    retrain,
    run_tags,
    watch,
)
from pipelines.monitoring import UNFINISHED
from pipelines.resources import automation_settings

if TYPE_CHECKING:
    from hapvr.stages.watch import PendingData

SETTINGS = automation_settings()
SETTLE_S = 30.0
# A tick may take a minute.
DELIVER_S = 20.0
SENSOR_STATUS = dg.DefaultSensorStatus.RUNNING if SETTINGS.enabled else dg.DefaultSensorStatus.STOPPED
DUPLICATES_STATUS = SENSOR_STATUS if SETTINGS.duplicates else dg.DefaultSensorStatus.STOPPED
SCHEDULE_STATUS = dg.DefaultScheduleStatus.RUNNING if SETTINGS.enabled else dg.DefaultScheduleStatus.STOPPED


@dg.sensor(
    name="new_videos",
    job=find_videos,
    minimum_interval_seconds=SETTINGS.watch_every_s,
    default_status=SENSOR_STATUS,
    description="Looks at the sources; new files or rows start `find_videos`, which makes shards of exactly those.",
)
def new_videos(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.RunRequest | dg.SkipReason:
    from hapvr.stages.sources import snapshot_sources

    snapshot = snapshot_sources(project.open(), settle_s=SETTLE_S)
    if snapshot.unsettled:
        return dg.SkipReason(
            f"{len(snapshot.unsettled)} files are still being written, e.g. {snapshot.unsettled[0].name}"
        )
    if snapshot.digest == _last_offer(context.instance):
        return dg.SkipReason("the sources hold what the manifest was made from")
    if running := _running(context.instance, find_videos.name):
        return dg.SkipReason(f"run {running} is making the manifest")
    return dg.RunRequest(run_key=snapshot.digest)


# Two sensors, because runs that decode need no GPU, and other resources of a cluster.
new_shards = dg.AutomationConditionSensorDefinition(
    "new_shards",
    target=dg.AssetSelection.assets(*INGESTED),
    minimum_interval_seconds=min(SETTINGS.watch_every_s, 60),
    default_status=SENSOR_STATUS,
    run_tags=run_tags("ingest"),
    description="Takes shards that the manifest registered to `frames`, a run per shard.",
)

new_frames = dg.AutomationConditionSensorDefinition(
    "new_frames",
    target=dg.AssetSelection.assets("whitening", *EXTRACTED),
    minimum_interval_seconds=min(SETTINGS.watch_every_s, 60),
    default_status=SENSOR_STATUS,
    run_tags=run_tags("extract"),
    description="Takes shards that have frames to `features`, `training_views` and `pseudo_labels`, a run per shard.",
)


@dg.sensor(
    name="enough_new_videos",
    job=retrain,
    minimum_interval_seconds=SETTINGS.watch_every_s,
    default_status=SENSOR_STATUS,
    description="Starts `retrain` when `automation.retrain_new_videos` training videos have features that the model has not seen.",
)
def enough_new_videos(context: dg.SensorEvaluationContext, project: ProjectResource) -> dg.RunRequest | dg.SkipReason:
    from hapvr.stages.watch import pending_data

    opened = project.open()
    wanted = opened.config.automation.retrain_new_videos
    pending = pending_data(opened)
    if pending.num_videos < wanted:
        return dg.SkipReason(f"{pending.num_videos} of {wanted} new training videos")
    if pending.awaited:
        return _awaiting(pending)
    if running := _running(context.instance, retrain.name):
        return dg.SkipReason(f"run {running} is re-training")
    # A digest: run keys are indexed, and PostgreSQL refuses to index a list of hundreds of shards.
    key = hashlib.sha256(",".join(pending.shards).encode()).hexdigest()
    return dg.RunRequest(run_key=key, tags={"hapvr/new_videos": str(pending.num_videos)})


@dg.sensor(
    name="outdated_index",
    jobs=[describe, index],
    minimum_interval_seconds=SETTINGS.watch_every_s,
    default_status=SENSOR_STATUS,
    description="Starts `describe` for shards without descriptors by the champion, and `index` when all have them. So new shards, "
    "a new champion and a rollback reach the index.",
)
def outdated_index(
    context: dg.SensorEvaluationContext, project: ProjectResource
) -> list[dg.RunRequest] | dg.RunRequest | dg.SkipReason:
    from hapvr.errors import DataError
    from hapvr.stages.search_index import outdated_index as compare
    from hapvr.stages.search_model import search_model

    opened = project.open()
    try:
        model = search_model(opened)
    except DataError as error:
        return dg.SkipReason(f"there is no champion yet: {error}")
    state = compare(opened, model)
    if not state.outdated:
        return dg.SkipReason(f"the index has all features, by the network {model.digest}")
    registered = context.instance.get_dynamic_partitions(SHARDS.name or "")
    if described := {key: digest for key, digest in state.undescribed.items() if key in registered}:
        return [
            dg.RunRequest(job_name=describe.name, partition_key=key, run_key=f"{key}-{digest}")
            for key, digest in described.items()
        ]
    if running := _running(context.instance, index.name):
        return dg.SkipReason(f"run {running} is making the index")
    return dg.RunRequest(job_name=index.name, run_key=state.digest)


@dg.sensor(
    name="outdated_duplicates",
    jobs=[duplicates, group],
    minimum_interval_seconds=SETTINGS.watch_every_s,
    default_status=DUPLICATES_STATUS,
    description="Starts `duplicates` for shards of the index whose videos were not searched for by its model, and `group` when all "
    "were, or when somebody has marked a pair.",
)
def outdated_duplicates(
    context: dg.SensorEvaluationContext, project: ProjectResource
) -> list[dg.RunRequest] | dg.RunRequest | dg.SkipReason:
    from hapvr.stages.duplicates import outdated_duplicates as compare

    if running := _running(context.instance, index.name):
        return dg.SkipReason(f"run {running} is making the index")
    state = compare(project.open())
    registered = context.instance.get_dynamic_partitions(SHARDS.name or "")
    if uncompared := {key: digest for key, digest in state.uncompared.items() if key in registered}:
        return [
            dg.RunRequest(job_name=duplicates.name, partition_key=key, run_key=f"{key}-{digest}")
            for key, digest in uncompared.items()
        ]
    if not state.groups:
        return dg.SkipReason("groups are of all shards of the index, and of all marks")
    if running := _running(context.instance, group.name):
        return dg.SkipReason(f"run {running} is grouping copies")
    # The last record in the key: marks that are taken back ask for the same groups a second time.
    last = context.instance.get_latest_materialization_event(dg.AssetKey("duplicate_groups"))
    return dg.RunRequest(job_name=group.name, run_key=f"{state.groups}-{last.timestamp if last else 0}")


@dg.sensor(
    name="unwatched_shards",
    job=watch,
    minimum_interval_seconds=SETTINGS.watch_every_s,
    default_status=SENSOR_STATUS,
    description="Starts `watch` for shards of the index that were not compared with the watch lists, and posts matches that wait.",
)
def unwatched_shards(
    context: dg.SensorEvaluationContext, project: ProjectResource
) -> list[dg.RunRequest] | dg.SkipReason:
    from hapvr.stages.alerts import deliver_alerts
    from hapvr.stages.watch_lists import unwatched_shards as compare

    opened = project.open()
    if not opened.config.watch.lists:
        return dg.SkipReason("the configuration has no watch lists")
    delivery = deliver_alerts(opened, limit_s=DELIVER_S)
    if running := _running(context.instance, index.name):
        return dg.SkipReason(f"run {running} is making the index")
    registered = context.instance.get_dynamic_partitions(SHARDS.name or "")
    wanted = {key: digest for key, digest in compare(opened).items() if key in registered}
    if not wanted:
        return dg.SkipReason(
            f"all shards were compared; {delivery.delivered} matches were posted now, {delivery.waiting} wait. {delivery.problem}"
        )
    return [dg.RunRequest(partition_key=key, run_key=f"{key}-{digest}") for key, digest in wanted.items()]


@dg.schedule(
    name="retrain_on_schedule",
    job=retrain,
    cron_schedule=SETTINGS.retrain_cron,
    execution_timezone=SETTINGS.timezone,
    default_status=SCHEDULE_STATUS,
    description="Starts `retrain` on all data that is there. It skips while a training runs, and if nothing changed since the last.",
)
def retrain_on_schedule(
    context: dg.ScheduleEvaluationContext, project: ProjectResource
) -> dg.RunRequest | dg.SkipReason:
    from hapvr.stages.watch import pending_data

    if running := _running(context.instance, retrain.name):
        return dg.SkipReason(f"run {running} is still re-training")
    pending = pending_data(project.open())
    if pending.is_empty:
        return dg.SkipReason(
            "no new videos, changed settings or other labelled pairs: training would give the same model again"
        )
    if pending.awaited:
        return _awaiting(pending)
    return dg.RunRequest(run_key=context.scheduled_execution_time.isoformat())


def _awaiting(pending: "PendingData") -> dg.SkipReason:
    return dg.SkipReason(
        f"{len(pending.awaited)} shards of the benchmarks have no features yet, e.g. {pending.awaited[0]}; "
        "if they do not come, see the runs of their assets"
    )


def _last_offer(instance: dg.DagsterInstance) -> str | None:
    """The digest that the last manifest was made from."""
    event = instance.get_latest_materialization_event(dg.AssetKey("video_manifest"))
    if event is None or event.asset_materialization is None:
        return None
    value = event.asset_materialization.metadata.get("offer")
    return str(value.value) if value is not None else None


def _running(instance: dg.DagsterInstance, job: str) -> str | None:
    """Id of an unfinished run of a job."""
    runs = instance.get_runs(dg.RunsFilter(job_name=job, statuses=UNFINISHED), limit=1)
    return runs[0].run_id if runs else None


schedules = [retrain_on_schedule]
sensors: list[dg.SensorDefinition] = [
    new_videos,
    new_shards,
    new_frames,
    enough_new_videos,
    outdated_index,
    outdated_duplicates,
    unwatched_shards,
]
