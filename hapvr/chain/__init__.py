"""The chain: its steps in order. Each says in a class what it is made from, what makes it, and what
it lacks, see `hapvr.chain.step.Step`.

Assets, jobs, automation, the verbs of `hapvr`, `hapvr status` and the repairs of `hapvr verify`
follow from `CHAIN`. A step is done where the fingerprint that it stored equals that of its
settings, its version and the digests of its inputs (`hapvr.provenance.Provenance`); a step that is
done is left alone, so running one twice costs nothing.
"""

from collections.abc import Iterable, Mapping

from hapvr.automation import Job
from hapvr.chain import duplicates, features, ingest, search, training
from hapvr.chain.look import Look
from hapvr.chain.step import Step, StepStatus
from hapvr.steps.project import Project

CHAIN: Mapping[str, Step] = {
    step.name: step
    for step in (
        ingest.VideoManifest(),
        ingest.Videos(),
        ingest.Frames(),
        features.Whitening(),
        features.Features(),
        features.TrainingViews(),
        features.PseudoLabels(),
        training.SimilarityModel(),
        training.BenchmarkScores(),
        training.RegisteredModel(),
        search.FrameDescriptors(),
        search.SearchIndex(),
        duplicates.DuplicatePairs(),
        duplicates.DuplicateGroups(),
        search.WatchMatches(),
    )
}
"""All steps by name, each after its inputs."""


def _by_job(steps: Iterable[Step]) -> dict[Job, tuple[Step, ...]]:
    jobs: dict[Job, tuple[Step, ...]] = {}
    for step in steps:
        jobs[step.job] = (*jobs.get(step.job, ()), step)
    return jobs


JOBS: Mapping[Job, tuple[Step, ...]] = _by_job(CHAIN.values())
"""The steps of every job, in the order in which jobs are needed."""


def chain_status(project: Project) -> list[StepStatus]:
    """How far every step is, from what is stored below the data root."""
    look = Look(project)
    return [step.status(look) for step in CHAIN.values()]
