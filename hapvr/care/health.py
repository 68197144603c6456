"""The state of a project in ten lines, and what in it needs a person: for `hapvr status` and the
webhook."""

import shutil
import time
from dataclasses import dataclass

from hapvr.chain import chain_status
from hapvr.chain.step import StepStatus
from hapvr.data.filesystem import DataRoot
from hapvr.data.manifest import FORGETTING
from hapvr.errors import HapvrError, RegistryBusyError
from hapvr.files import read_text
from hapvr.registry.client import mlflow_client
from hapvr.registry.records import moment_of
from hapvr.search.current import CurrentIndex, serving_index
from hapvr.steps.alerts import OUTBOX_PLACE, AlertOutbox, Concern, training_failed
from hapvr.steps.baseline import has_registry
from hapvr.steps.model_places import CURRENT_NAME, MODELS
from hapvr.steps.project import COLLECTION_FILE, Project
from hapvr.steps.search_model import REGISTERED
from hapvr.steps.sources import TICK_PLACE, lost_files
from hapvr.train.run_names import FAILURE_NAME, RUN_NAME

MIN_SILENCE_S = 900.0
MAX_INDEX_HOURS = 24.0
"""A champion that searches still do not use after so many hours needs a person."""
MIN_FREE_BYTES = 5 * 2**30
"""Less free space at the data root needs a person."""
MAX_LOST_RATE = 0.1
"""A source that has lost the files of a larger part of its videos than this needs a person."""
OF_TRAINING = frozenset(
    (
        "training_views",
        "pseudo_labels",
        "similarity_model",
        "benchmark_scores",
        "registered_model",
    )
)
"""Steps that a collection without training does not need."""
SETTLED_S = 600.0
"""A failed training that was not tried again for so many seconds is not being retried."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """The state of a project."""

    steps: list[StepStatus]
    files: dict[str, tuple[int, int]]
    """Source -> how many of its videos lost their file, and how many have been usable."""
    champion: dict[str, str] | None
    """Its name, since when it is champion (ISO 8601, UTC) and the decision; None where there is no
    champion, or the registry does not answer."""
    registry_busy: str = ""
    """Why the champion is not known at the moment."""
    index: CurrentIndex | None
    """The index that answers searches."""
    tick_s: float | None
    """When the automation looked at the sources last."""
    waiting: int
    """Messages of the outbox."""
    failure: str
    """Why the last training failed, or ""."""
    free_bytes: int | None
    concerns: list[Concern]
    trains: bool
    """Whether models are trained here; a collection of `hapvr index add` needs no training."""

    def lines(self) -> list[str]:
        """The lines that people read; those about training only where models are trained."""
        search = "no index"
        if self.index:
            search = f"{self.index.model} answers since {self.index.since}"

        lines = [f"videos      {self._videos_text()}", f"missing     {self._missing_text()}"]
        if self.trains:
            lines += self._training_lines()
        lines.append(f"search      {search}")
        if self.trains:
            lines.append(f"automation  {self._automation_text()}")
        if self.trains or self.waiting:
            lines.append(f"webhook     {self.waiting} messages wait")
        if self.free_bytes is not None:
            lines.append(f"disk        {self.free_bytes / 1e9:.1f} GB free")
        return lines + [f"NEEDS YOU   {concern.text}" for concern in self.concerns]

    def _missing_text(self) -> str:
        """How much each step still has to do."""
        unneeded = frozenset() if self.trains else OF_TRAINING
        missing = [step for step in self.steps if step.missing and step.step not in unneeded]
        return ", ".join(f"{step.step} {step.missing}" for step in missing) or "nothing"

    def _training_lines(self) -> list[str]:
        champion = f"not known: {self.registry_busy}" if self.registry_busy else "none"
        if self.champion:
            champion = "{name} since {since}: {decision}".format(**self.champion)
        return [
            f"training    {self.failure or 'the last one did not fail'}",
            f"champion    {champion}",
        ]

    def _automation_text(self) -> str:
        if self.tick_s is None:
            return "has not run here"
        minutes = (time.time() - self.tick_s) / 60
        return f"looked at the sources {minutes:.0f} min ago"

    def _videos_text(self) -> str:
        lost = sum(lost for lost, _ in self.files.values())
        usable = sum(usable for _, usable in self.files.values())
        failed = {step.step: step.failed_videos for step in self.steps}
        # a video that was lost in an early step is a failed row of all later ones
        unusable = max(failed.get("videos", 0), failed.get("frames", 0))
        usable -= unusable - failed.get("videos", 0)
        return f"{usable} usable, {lost} of them offline; {unusable} cannot be used"


@dataclass(frozen=True)
class FailedTraining:
    """A training that has failed."""

    run: str
    message: str
    time_s: float
    """When it failed."""


def health(project: Project) -> Health:
    """Look at everything that is stored, and at the registry if one answers. This changes
    nothing."""
    root = project.root
    failed = _failed_training(root)
    tick_s = None
    if root.exists(TICK_PLACE):
        tick = root.read_json_as(TICK_PLACE, dict[str, float], hint="remove it")
        tick_s = tick.get("time_s")

    free_bytes = None
    if root.local is not None and root.local.exists():
        free_bytes = shutil.disk_usage(root.local).free

    champion: dict[str, str] | None = None
    registry_busy = ""
    try:
        champion = _champion(project)
    except RegistryBusyError as error:
        registry_busy = str(error)

    state = Health(
        steps=chain_status(project),
        files=lost_files(project),
        champion=champion,
        registry_busy=registry_busy,
        index=serving_index(root),
        tick_s=tick_s,
        waiting=AlertOutbox(root).counts()[1] if root.exists(OUTBOX_PLACE) else 0,
        failure="" if failed is None else f"{failed.run} failed: {failed.message}",
        free_bytes=free_bytes,
        concerns=[],
        trains=_trains(project),
    )
    state.concerns.extend(_concerns(project, state))
    if failed is not None and time.time() - failed.time_s > SETTLED_S:
        state.concerns.append(training_failed(failed.run, failed.message))
    return state


def _trains(project: Project) -> bool:
    """Whether models are or were trained here."""
    if not project.root.exists(COLLECTION_FILE) or project.config.automation.enabled:
        return True
    return has_registry(project) or project.root.exists(CURRENT_NAME)


def _failed_training(root: DataRoot) -> FailedTraining | None:
    """The training that began last, if it has failed."""
    if root.local is None:
        return None
    records = list((root.local / MODELS).glob(f"*/{RUN_NAME}"))
    if not records:
        return None
    newest = max(records, key=lambda path: path.stat().st_mtime)
    failure = newest.with_name(FAILURE_NAME)
    if not failure.is_file():
        return None
    message = read_text(failure)
    if not message:
        return None
    return FailedTraining(newest.parent.name, message, failure.stat().st_mtime)


def _concerns(project: Project, state: Health) -> list[Concern]:
    """What needs a person, besides a failed training."""
    concerns = [
        _stopped_automation(project, state),
        _old_index(state),
        _lost_champion(state),
        _unfinished_forgetting(project),
        _full_disk(project, state),
    ]
    concerns += [_lost_source(source, *counts) for source, counts in state.files.items()]
    return [concern for concern in concerns if concern is not None]


def _stopped_automation(project: Project, state: Health) -> Concern | None:
    settings = project.config.automation
    if not settings.enabled or state.tick_s is None:
        return None
    silent_s = time.time() - state.tick_s
    if silent_s <= max(3 * settings.watch_every_s, MIN_SILENCE_S):
        return None
    text = (
        f"the automation has not looked at the sources for {silent_s / 60:.0f} minutes; see "
        "`make ui` and the ticks of the sensor new_videos"
    )
    return Concern("automation_stopped", "automation", text, lasting=True)


def _old_index(state: Health) -> Concern | None:
    """A champion that searches do not use."""
    champion = state.champion
    # An alias that was set by hand in MLflow does not say since when.
    since = moment_of(champion["since"]) if champion else None
    if champion is None or since is None:
        return None
    answering = "nothing" if state.index is None else state.index.model
    if answering == champion["name"]:
        return None
    age_h = (time.time() - since.timestamp()) / 3600
    if age_h <= MAX_INDEX_HOURS:
        return None
    text = (
        f"{champion['name']} is champion for {age_h:.0f} hours, and {answering} answers "
        "searches; `hapvr index update` says why"
    )
    return Concern("index_old", f"index/{champion['name']}/{champion['since']}", text)


def _lost_champion(state: Health) -> Concern | None:
    if state.champion is not None or state.registry_busy or state.index is None:
        return None
    if not state.index.model.startswith(REGISTERED):
        return None
    text = (
        f"{state.index.model} answers searches, but the registry names no champion, or is lost; "
        "restore mlflow/, or promote a version"
    )
    return Concern("champion_lost", "registry", text, lasting=True)


def _unfinished_forgetting(project: Project) -> Concern | None:
    if not project.root.exists(FORGETTING):
        return None
    text = "`hapvr forget` has not finished; if it is not running, repeat it"
    return Concern("forget_unfinished", "forget", text, lasting=True)


def _full_disk(project: Project, state: Health) -> Concern | None:
    if state.free_bytes is None or state.free_bytes >= MIN_FREE_BYTES:
        return None
    text = (
        f"{project.root.url} has {state.free_bytes / 1e9:.1f} GB left; make room, or runs will fail"
    )
    return Concern("disk_low", "disk", text, lasting=True)


def _lost_source(source: str, lost: int, usable: int) -> Concern | None:
    if lost <= MAX_LOST_RATE * usable:
        return None
    text = (
        f"source {source}: the files of {lost} of {usable} videos are not there; connect their "
        "drive; what was downloaded is fetched again by `hapvr download --retry-failed`"
    )
    return Concern("source_lost", f"source/{source}", text, lasting=True)


def _champion(project: Project) -> dict[str, str] | None:
    """The champion, see `Health`. Raises RegistryBusyError."""
    if not has_registry(project):
        return None
    name = project.config.tracking.registered_model
    try:
        client = mlflow_client(project.tracking_uri)
        from hapvr.registry import champions, versions

        champion = champions.champion_of(client, name)
        if champion is None:
            return None
        tags = versions.version_tags(client, name, champion.version)
    except RegistryBusyError:
        raise
    except HapvrError:
        return None

    return {
        "name": f"models:/{name}/{champion.version}",
        "since": tags.get(versions.DECIDED_TAG, "").partition(" by ")[0],
        "decision": tags.get(versions.REASON_TAG, ""),
    }
