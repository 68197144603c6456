"""How a project is, in ten lines, and what of it needs a person: for `hapvr status` and for the
webhook."""

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from hapvr.chain_status import StepStatus, chain_status
from hapvr.data.manifest import FORGETTING
from hapvr.errors import HapvrError
from hapvr.files import read_text
from hapvr.registry.client import mlflow_client
from hapvr.search.collection import CurrentIndex, serving_index
from hapvr.steps.alerts import OUTBOX_PLACE, AlertOutbox, Concern, training_failed
from hapvr.steps.project import Project
from hapvr.steps.search_model import REGISTERED
from hapvr.steps.sources import TICK_PLACE, lost_files

MIN_SILENCE_S = 900.0
MAX_INDEX_HOURS = 24.0
"""A champion that searches do not use after so long needs a person."""
MIN_FREE_BYTES = 5 * 2**30
"""Less free space at the data root needs a person."""
MAX_LOST_RATE = 0.1
"""A source that has lost the files of a larger part of its videos needs a person."""
SETTLED_S = 600.0
"""A failed training that nobody has tried again for so long is not being retried."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """files: source -> how many of its videos lost their file, and how many have been usable.
    champion: its name, since when (ISO 8601, UTC) and the decision; None as the index where there
    is none, or where the registry does not answer. tick_s: when the automation looked at the
    sources last. waiting: messages of the outbox. failure: of the last training, or ""."""

    steps: list[StepStatus]
    files: dict[str, tuple[int, int]]
    champion: dict[str, str] | None
    index: CurrentIndex | None
    tick_s: float | None
    waiting: int
    failure: str
    free_bytes: int | None
    concerns: list[Concern]

    def lines(self) -> list[str]:
        """What people read."""
        lost, usable = (
            (sum(column) for column in zip(*self.files.values(), strict=True))
            if self.files
            else (0, 0)
        )
        failed = {step.step: step.failed_videos for step in self.steps}
        # a video that was lost in an early step is a failed row of all later ones
        unusable = max(failed.get("videos", 0), failed.get("frames", 0))
        usable -= unusable - failed.get("videos", 0)
        missing = ", ".join(f"{step.step} {step.missing}" for step in self.steps if step.missing)
        minutes = "has not run here"
        if self.tick_s is not None:
            minutes = f"looked at the sources {(time.time() - self.tick_s) / 60:.0f} min ago"
        champion = "none"
        search = "no index"
        if self.champion:
            champion = "{name} since {since}: {decision}".format(**self.champion)
        if self.index:
            search = f"{self.index.model} answers since {self.index.since}"
        lines = [
            f"videos      {usable} usable, {lost} of them offline; {unusable} cannot be used",
            f"missing     {missing or 'nothing'}",
            f"training    {self.failure or 'the last one did not fail'}",
            f"champion    {champion}",
            f"search      {search}",
            f"automation  {minutes}",
            f"webhook     {self.waiting} messages wait",
        ]
        lines += (
            [f"disk        {self.free_bytes / 1e9:.1f} GB free"]
            if self.free_bytes is not None
            else []
        )
        return lines + [f"NEEDS YOU   {one.text}" for one in self.concerns]


def health(project: Project) -> Health:
    """Look at everything that is stored, and at the registry if one answers. Nothing is changed."""
    from hapvr.steps.training import MODELS
    from hapvr.train.run_folder import FAILURE_NAME, RUN_NAME

    root, run, failure, failed_s, ticked = (
        project.root,
        "",
        "",
        0.0,
        project.root.exists(TICK_PLACE),
    )
    # of the training that was begun last
    runs = list((root.local / MODELS).glob(f"*/{RUN_NAME}")) if root.local is not None else []
    if (
        runs
        and (
            file := max(runs, key=lambda path: path.stat().st_mtime).with_name(FAILURE_NAME)
        ).is_file()
    ):
        run, failure, failed_s = (
            file.parent.name,
            read_text(file),
            file.stat().st_mtime,
        )
    found = Health(
        steps=chain_status(project),
        files=lost_files(project),
        champion=_champion(project),
        index=serving_index(root),
        tick_s=root.read_json_as(TICK_PLACE, dict[str, float], hint="remove it").get("time_s")
        if ticked
        else None,
        waiting=AlertOutbox(root).counts()[1] if root.exists(OUTBOX_PLACE) else 0,
        failure=failure and f"{run} failed: {failure}",
        free_bytes=shutil.disk_usage(root.local).free
        if root.local is not None and root.local.exists()
        else None,
        concerns=[],
    )
    found.concerns.extend(_concerns(project, found))
    if failure and time.time() - failed_s > SETTLED_S:
        found.concerns.append(training_failed(run, failure))
    return found


def _concerns(project: Project, found: Health) -> Iterator[Concern]:
    settings, champion, now_s = project.config.automation, found.champion, time.time()
    silent_s = 0.0 if found.tick_s is None else now_s - found.tick_s
    if settings.enabled and silent_s > max(3 * settings.watch_every_s, MIN_SILENCE_S):
        said = f"the automation has not looked at the sources for {silent_s / 60:.0f} minutes"
        hint = "see `make ui` and the ticks of the sensor new_videos"
        yield Concern("automation_stopped", "automation", f"{said}; {hint}", lasting=True)
    # an alias that was set by hand in MLflow does not say since when
    if (
        champion
        and champion["since"]
        and (found.index is None or found.index.model != champion["name"])
    ):
        age_h = (
            now_s - datetime.fromisoformat(champion["since"]).replace(tzinfo=UTC).timestamp()
        ) / 3600
        if age_h > MAX_INDEX_HOURS:
            answers = "nothing" if found.index is None else found.index.model
            said = (
                f"{champion['name']} is champion for {age_h:.0f} hours, and {answers} "
                "answers searches"
            )
            key = f"index/{champion['name']}/{champion['since']}"
            yield Concern("index_old", key, f"{said}; `hapvr index update` says why")
    if champion is None and found.index is not None and found.index.model.startswith(REGISTERED):
        said = (
            f"{found.index.model} answers searches, but the registry names no champion, or is lost"
        )
        yield Concern(
            "champion_lost",
            "registry",
            f"{said}; restore mlflow/, or promote a version",
            lasting=True,
        )
    if project.root.exists(FORGETTING):
        said = "`hapvr forget` has not ended; if none runs, repeat it"
        yield Concern("forget_unfinished", "forget", said, lasting=True)
    if found.free_bytes is not None and found.free_bytes < MIN_FREE_BYTES:
        said = f"{project.root.url} has {found.free_bytes / 1e9:.1f} GB left"
        yield Concern("disk_low", "disk", f"{said}; make room, or runs will fail", lasting=True)
    for source, (lost, usable) in found.files.items():
        if lost > MAX_LOST_RATE * usable:
            said = f"source {source}: the files of {lost} of {usable} videos are not there"
            hint = (
                "connect their drive; what was downloaded is fetched again by `hapvr "
                "download --retry-failed`"
            )
            yield Concern("source_lost", f"source/{source}", f"{said}; {hint}", lasting=True)


def _champion(project: Project) -> dict[str, str] | None:
    name = project.config.tracking.registered_model
    with suppress(HapvrError):
        client = mlflow_client(project.tracking_uri)
        from hapvr.registry import versions

        if found := versions.champion_of(client, name):
            tags = versions.version_tags(client, name, found.version)
            since = tags.get(versions.DECIDED_TAG, "").partition(" by ")[0]
            decision = tags.get(versions.REASON_TAG, "")
            return {"name": f"models:/{name}/{found.version}", "since": since, "decision": decision}
    return None
