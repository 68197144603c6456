"""The chain: every step, what it is made from and what makes it, declared once.

Assets, jobs, automation, the verbs of `hapvr`, `hapvr status` and the repairs of `hapvr verify`
follow from `CHAIN`. A step is done where the fingerprint that it stored equals that of its
settings, its version and the digests of its inputs (`hapvr.provenance.Provenance`); a step that is
done is left alone, so running one twice costs nothing.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

from hapvr.automation import Job
from hapvr.data.filesystem import DataRoot
from hapvr.data.frames import frames_digest
from hapvr.data.manifest import (
    CHANGED_PLACE,
    FORGETTING,
    collection_keys,
    shard_keys,
    training_shard_keys,
)
from hapvr.data.shards import Shard
from hapvr.errors import DataError
from hapvr.progress import Progress, no_progress
from hapvr.steps.project import Project


@dataclass(frozen=True)
class Step:
    """One step of the chain."""

    name: str
    """of the asset"""
    job: Job
    """the Dagster job that makes it"""
    make: str
    """`module:function` of `hapvr.steps`, called with the project, `progress`, and for a step per
    shard `key`"""
    does: str
    """in half a sentence"""
    inputs: tuple[str, ...] = ()
    """steps that it is made from"""
    takes: Literal["", "model", "searcher"] = ""
    """what else it is called with: the champion, or a searcher by it"""
    shards: Literal["", "all", "training", "collection"] = ""
    """which shards it is made for, others get an empty record; "" for a step that is made once"""
    gpu: bool = False
    """whether it computes on a GPU where there is one"""

    @property
    def per_shard(self) -> bool:
        return self.shards != ""

    def run(
        self, project: Project, key: str = "", *, progress: Progress = no_progress, **options: Any
    ) -> Any:
        """Make what this step lacks. key: of the shard; "" for a step without shards. Returns the
        result of its function."""
        module, _, function = self.make.partition(":")
        if self.per_shard:
            options["key"] = key
        if self.takes and self.takes not in options:
            from hapvr.steps.search_model import search_model
            from hapvr.steps.searcher import Searcher

            if self.takes == "model":
                options["model"] = search_model(project)
            else:
                options[self.takes] = Searcher.open(project)
        run = getattr(import_module(f"hapvr.steps.{module}"), function)
        return run(project, progress=progress, **options)


CHAIN: Mapping[str, Step] = {
    step.name: step
    for step in (
        Step(
            "video_manifest",
            "find_videos",
            "video_manifest:make_manifest",
            does="lists the videos of all sources in shards; it only grows",
        ),
        Step(
            "videos",
            "ingest",
            "videos:make_videos",
            inputs=("video_manifest",),
            shards="all",
            does="fetches remote files and inspects every file",
        ),
        Step(
            "frames",
            "ingest",
            "videos:make_frames",
            inputs=("videos",),
            shards="all",
            does="samples one frame per second, in processes that are killed when they hang",
        ),
        Step(
            "whitening",
            "whiten",
            "whitening:make_whitening",
            inputs=("frames",),
            gpu=True,
            does="fits PCA whitening on regions of training frames, once",
        ),
        Step(
            "features",
            "extract",
            "features:make_features",
            inputs=("frames", "whitening"),
            shards="all",
            gpu=True,
            does="computes region features [T, 9, D] of whole videos",
        ),
        Step(
            "training_views",
            "extract",
            "views:make_training_views",
            inputs=("frames", "whitening"),
            shards="training",
            gpu=True,
            does="computes features of weakly and strongly augmented clips",
        ),
        Step(
            "pseudo_labels",
            "extract",
            "views:make_pseudo_labels",
            inputs=("frames",),
            shards="training",
            gpu=True,
            does="computes the teacher's embeddings of the same clips, which label their frames",
        ),
        Step(
            "similarity_model",
            "retrain",
            "training:train_model",
            inputs=("training_views", "pseudo_labels", "features"),
            gpu=True,
            does="trains the network in a process of its own, tracked as one MLflow run",
        ),
        Step(
            "benchmark_scores",
            "retrain",
            "evaluation:score_benchmarks",
            inputs=("similarity_model", "features"),
            gpu=True,
            does="scores every benchmark with the trained model and the untrained baseline",
        ),
        Step(
            "registered_model",
            "retrain",
            "registration:make_registered_model",
            inputs=("similarity_model", "benchmark_scores"),
            does="registers a calibrated version, which the gate may promote to champion",
        ),
        Step(
            "frame_descriptors",
            "describe",
            "frame_descriptors:make_descriptors",
            inputs=("features", "registered_model"),
            takes="model",
            shards="collection",
            gpu=True,
            does="computes one vector per frame with the champion's network",
        ),
        Step(
            "search_index",
            "index",
            "search_index:update_index",
            inputs=("frame_descriptors",),
            takes="model",
            does="builds the index that searches use",
        ),
        Step(
            "duplicate_pairs",
            "duplicates",
            "duplicate_pairs:make_duplicate_pairs",
            inputs=("search_index",),
            takes="searcher",
            shards="collection",
            gpu=True,
            does="finds pairs of the shard's videos with all others that share footage",
        ),
        Step(
            "duplicate_groups",
            "group",
            "duplicate_groups:make_duplicate_groups",
            inputs=("duplicate_pairs",),
            takes="searcher",
            does="groups copies and says which to keep",
        ),
        Step(
            "watch_matches",
            "watch",
            "watch_lists:make_watch_matches",
            inputs=("search_index",),
            takes="searcher",
            shards="collection",
            gpu=True,
            does="compares the queries of watch lists with the shard, and posts matches on request",
        ),
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
SHARD_STEPS = tuple(step.name for step in (*JOBS["ingest"], *JOBS["extract"]))
"""Steps that keep a `hapvr.data.shards.Shard` each, from files to what is trained on."""


def shards_of(project: Project, step: Step) -> list[str]:
    """The shards that a step is made for, sorted; [""] for a step without shards."""
    if step.shards == "training":
        return training_shard_keys(project.root)
    if step.shards == "collection":
        return collection_keys(project.root, shard_keys(project.root))
    return shard_keys(project.root) if step.per_shard else [""]


@lru_cache(maxsize=10_000)
def _stale(root_url: str, key: str, _written: tuple[int, ...]) -> dict[str, str]:
    """Steps of a shard that are gone or whose inputs are others now, each with their digest;
    remembered while no file is written. Raises DataError for a shard without frames, which other
    steps make."""
    from hapvr.steps.videos import content_digest

    root = DataRoot(root_url)
    shards = [Shard(root, name, key) for name in SHARD_STEPS]
    videos, frames = shards[:2]
    digests = {"videos": content_digest(videos.rows()), "frames": frames_digest(frames)}
    wanted = {}
    for shard in shards[1:]:
        source = CHAIN[shard.stage].inputs[0]
        provenance = shard.provenance()
        if provenance is None or provenance.inputs.get(source) != digests[source]:
            wanted[shard.stage] = digests[source]
    return wanted


def stale(project: Project) -> dict[str, dict[str, str]]:
    """As `outdated`: what was made of other files or frames than are stored now, and what is gone;
    nothing while `forget` is under way."""
    root = project.root
    changed: dict[str, str] = {}
    if root.exists(CHANGED_PLACE):
        changed = root.read_json_as(CHANGED_PLACE, dict[str, str], hint="remove it")
    wanted = {"videos": changed}
    if root.exists(FORGETTING):
        return wanted

    training = set(training_shard_keys(root))
    for key in shard_keys(root):
        names = [project.shard(name, key).index_name for name in SHARD_STEPS]
        written = tuple(root.modified_ns(*names))
        with suppress(DataError):
            for name, digest in _stale(root.url, key, written).items():
                if key in training or CHAIN[name].shards == "all":
                    wanted.setdefault(name, {})[key] = digest
    return wanted


def outdated(project: Project) -> dict[str, dict[str, str]]:
    """What the steps after registration lack now: step -> shard key ("" without shards) -> a digest
    of what asks for it. The digest differs when the same shard is asked for again, e.g. as a
    champion comes back. A step is not asked for while one before it is. Steps that the
    configuration does not use ask for nothing."""
    from hapvr.steps.search_model import search_model

    wanted: dict[str, dict[str, str]] = {}
    try:
        model = search_model(project)
    except DataError:  # there is no champion
        return wanted
    from hapvr.steps.search_index import outdated_index

    undescribed, lacking = outdated_index(project, model)
    # Imported features are not shards of the manifest; the index describes them itself.
    keys = shard_keys(project.root)
    described = {key: digest for key, digest in undescribed.items() if key in keys}
    wanted["frame_descriptors"] = described
    if lacking:
        wanted["search_index"] = {} if described else {"": lacking}
        return wanted
    from hapvr.steps.duplicate_groups import outdated_groups
    from hapvr.steps.duplicate_pairs import outdated_pairs
    from hapvr.steps.watch_lists import unwatched_shards
    from hapvr.steps.watch_queries import watch_lists

    if project.config.automation.duplicates:
        pairs = outdated_pairs(project)
        groups = outdated_groups(project)
        wanted["duplicate_pairs"] = pairs
        wanted["duplicate_groups"] = {"": groups} if groups and not pairs else {}
    if watch_lists(project):
        wanted["watch_matches"] = unwatched_shards(project)
    return wanted
