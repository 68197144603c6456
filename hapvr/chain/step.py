"""What a step of the chain says of itself."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hapvr.automation import Job
from hapvr.chain.look import Look, Shards
from hapvr.data.shards import STATUS_OK
from hapvr.progress import Progress, no_progress
from hapvr.steps.project import Project


@dataclass(frozen=True)
class StepStatus:
    """How far a step is."""

    step: str
    done: int
    """shards; 1 or 0 for a step without shards"""
    missing: int
    """as `done`"""
    failed_videos: int = 0
    """rows with a reason in its shards"""


class Step(ABC):
    """One step of the chain: a subclass says what it is made from, what makes it, and what it
    lacks. What is heavy to import is imported where it runs."""

    name: str
    """of the asset"""
    job: Job
    """the Dagster job that makes it"""
    does: str
    """in half a sentence"""
    inputs: tuple[str, ...] = ()
    """steps that it is made from"""
    shards: Shards = ""
    """which shards it is made for, others get an empty record; "" for a step that is made once"""
    gpu: bool = False
    """whether it computes on a GPU where there is one"""

    @property
    def per_shard(self) -> bool:
        """Whether it is made for each shard."""
        return self.shards != ""

    @abstractmethod
    def run(
        self, project: Project, key: str = "", *, progress: Progress = no_progress, **options: Any
    ) -> Any:
        """Make what this step lacks.

        key: of the shard; "" for a step without shards
        options: of the function that makes it

        Returns its result.
        """

    def unused_reason(self, project: Project) -> str:
        """Why a job leaves it out, as the configuration uses nothing of it; "" for one that is
        used."""
        return ""

    def lacks(self, look: Look) -> Mapping[str, str] | None:
        """What has to be made, besides what never was: shard key ("" without shards) -> a digest of
        what asks for it, which differs when the same shard is asked for again, e.g. as a champion
        comes back. None where nobody can say: a step before it comes first, or the configuration
        does not use it."""
        return None

    def status(self, look: Look) -> StepStatus:
        """How far it is; nothing where nobody can say what it lacks."""
        lacking = self.lacks(look)
        if lacking is None:
            return StepStatus(self.name, 0, 0)
        keys = look.shards(self.shards)
        return status_of(self.name, [key not in lacking for key in keys])


class ShardStep(Step):
    """A step that keeps a `hapvr.data.shards.Shard` each, with a row per video, and records the
    digest of its first input."""

    def lacks(self, look: Look) -> Mapping[str, str] | None:
        """Shards that are gone, or that were made of another input than is stored now."""
        return look.stale_shards(self.name, self.inputs[0], look.shards(self.shards))

    def status(self, look: Look) -> StepStatus:
        """How many shards there are, and how many of their videos failed."""
        missing = 0
        done = 0
        failed = 0
        for key in look.shards(self.shards):
            index = look.project.shard(self.name, key).find()
            if index is None:
                missing += 1
                continue

            done += 1
            failed += sum(row["status"] != STATUS_OK for row in index.rows())

        return StepStatus(self.name, done, missing, failed)


def status_of(step: str, present: Sequence[bool]) -> StepStatus:
    """The status of a step of whose parts these are there."""
    return StepStatus(step, present.count(True), present.count(False))


def shards_of(project: Project, step: Step) -> list[str]:
    """The shards that a step is made for now, sorted; [""] for a step without shards."""
    return Look(project).shards(step.shards)
