"""How far every step of the chain is, from what is stored below the data root."""

from collections.abc import Mapping
from dataclasses import dataclass

from hapvr.chain import CHAIN, Step, outdated, shards_of
from hapvr.data.manifest import shard_keys
from hapvr.data.shards import STATUS_OK
from hapvr.steps.model_places import CURRENT_NAME, current_key
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

    @staticmethod
    def of(step: str, present: list[bool]) -> "StepStatus":
        """The status of a step of whose parts these are there."""
        return StepStatus(step, present.count(True), present.count(False))


def chain_status(project: Project) -> list[StepStatus]:
    """The status of every step."""
    awaited = outdated(project)
    files = _files_of_steps(project)
    statuses = []
    for step in CHAIN.values():
        if step.job in ("ingest", "extract"):
            statuses.append(_shards_status(project, step))
        elif step.name in files:
            present = [project.root.exists(name) for name in files[step.name]]
            statuses.append(StepStatus.of(step.name, present))
        else:
            statuses.append(StepStatus.of(step.name, _present_parts(project, step, awaited)))
    return statuses


def _present_parts(
    project: Project, step: Step, awaited: Mapping[str, Mapping[str, str]]
) -> list[bool]:
    """Whether each part of a step is there, by what is asked for."""
    if step.name == "video_manifest":
        return [True] * len(shard_keys(project.root))
    if step.name == "registered_model":
        return [bool(awaited)]  # without a champion nothing is asked for
    if step.name in awaited:
        return [key not in awaited[step.name] for key in shards_of(project, step)]
    return []


def _files_of_steps(project: Project) -> dict[str, list[str]]:
    """The files of steps that have no shards, below the data root."""
    root = project.root
    scores = f"models/{current_key(root)}/benchmarks" if root.exists(CURRENT_NAME) else "models"
    benchmarks = project.config.evaluation.benchmarks
    return {
        "whitening": ["whitening/whitening.json"],
        "similarity_model": [CURRENT_NAME],
        "benchmark_scores": [f"{scores}/{name}/scores.json" for name in benchmarks],
    }


def _shards_status(project: Project, step: Step) -> StepStatus:
    """Of a step whose shards have a row per video."""
    missing = 0
    done = 0
    failed = 0
    for key in shards_of(project, step):
        index = project.shard(step.name, key).find()
        if index is None:
            missing += 1
            continue
        done += 1
        failed += sum(row["status"] != STATUS_OK for row in index.rows())
    return StepStatus(step.name, done, missing, failed)
