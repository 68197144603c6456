"""The chain: every step, what it is made from and what makes it, declared once.

Assets, jobs, automation, the verbs of `hapvr`, `hapvr status` and the repairs of `hapvr verify` follow from `CHAIN`.
A step is done where the fingerprint that it stored equals that of its settings, its version and the digests of its inputs
(`hapvr.provenance.Provenance`); a step that is done is left alone, so running one twice costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hapvr.config import Job
from hapvr.data.manifest import read_manifest, shard_keys, training_shard_keys
from hapvr.data.shards import STATUS_OK
from hapvr.errors import DataError
from hapvr.progress import Progress, no_progress
from hapvr.steps.project import Project

if TYPE_CHECKING:
    from hapvr.steps.search_model import SearchModel


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of the chain.

    name: of the asset, and of the folder below the data root unless `place` says otherwise. does: in half a sentence. job:
    the Dagster job that makes it. inputs: steps that it is made from. make: `module:function`, called with the project, for
    a step per shard the shard's key, and `progress`. per_shard: made shard by shard; training_only: other shards get an empty
    record. gpu: computes on a GPU where there is one.
    """

    name: str
    does: str
    job: Job
    make: str
    inputs: tuple[str, ...] = ()
    place: str = ""
    per_shard: bool = False
    training_only: bool = False
    gpu: bool = False

    def run(self, project: Project, key: str = "", *, progress: Progress = no_progress, **options: Any) -> Any:
        """Make what this step lacks. key: of the shard; "" for a step without shards. Returns the result of its function."""
        module, _, function = self.make.partition(":")
        arguments = (key,) if self.per_shard else ()
        return getattr(import_module(module), function)(project, *arguments, progress=progress, **options)


_STEPS = (
    Step(
        name="video_manifest",
        does="lists the videos of all sources in shards; it only grows",
        job="find_videos",
        make="hapvr.steps.manifest:make_manifest",
        place="manifest/<shard>/",
    ),
    Step(
        name="videos",
        does="fetches remote files and inspects every file",
        job="ingest",
        make="hapvr.steps.videos:make_videos",
        inputs=("video_manifest",),
        place="videos/<shard>/, downloads/",
        per_shard=True,
    ),
    Step(
        name="frames",
        does="samples one frame per second, in processes that are killed when they hang",
        job="ingest",
        make="hapvr.steps.frames:make_frames",
        inputs=("videos",),
        per_shard=True,
    ),
    Step(
        name="whitening",
        does="fits PCA whitening on regions of training frames, once",
        job="whiten",
        make="hapvr.chain:fit_whitening",
        inputs=("frames",),
        gpu=True,
    ),
    Step(
        name="features",
        does="computes region features [T, 9, D] of whole videos",
        job="extract",
        make="hapvr.steps.features:make_features",
        inputs=("frames", "whitening"),
        per_shard=True,
        gpu=True,
    ),
    Step(
        name="training_views",
        does="computes features of weakly and strongly augmented clips",
        job="extract",
        make="hapvr.steps.views:make_training_views",
        inputs=("frames", "whitening"),
        per_shard=True,
        training_only=True,
        gpu=True,
    ),
    Step(
        name="pseudo_labels",
        does="computes the teacher's embeddings of the same clips, and frame labels from them",
        job="extract",
        make="hapvr.steps.views:make_pseudo_labels",
        inputs=("frames",),
        place="teacher_embeddings/<shard>/, pseudo_labels/<shard>/",
        per_shard=True,
        training_only=True,
        gpu=True,
    ),
    Step(
        name="similarity_model",
        does="trains the network in a process of its own, tracked as one MLflow run",
        job="retrain",
        make="hapvr.chain:train_model",
        inputs=("training_views", "pseudo_labels", "features"),
        place="models/<run>/",
        gpu=True,
    ),
    Step(
        name="benchmark_scores",
        does="scores every benchmark with the trained model and the untrained baseline",
        job="retrain",
        make="hapvr.chain:score_benchmarks",
        inputs=("similarity_model", "features"),
        place="models/<run>/benchmarks/",
        gpu=True,
    ),
    Step(
        name="registered_model",
        does="registers a calibrated version, which the gate may promote to champion",
        job="retrain",
        make="hapvr.chain:register_model",
        inputs=("similarity_model", "benchmark_scores"),
        place="mlflow/, models/<run>/bundle/",
    ),
    Step(
        name="frame_descriptors",
        does="computes one vector per frame with the champion's network",
        job="describe",
        make="hapvr.chain:describe_frames",
        inputs=("features", "registered_model"),
        place="search/<network>/descriptors/<shard>/",
        per_shard=True,
        gpu=True,
    ),
    Step(
        name="search_index",
        does="builds the index that searches use",
        job="index",
        make="hapvr.chain:index_frames",
        inputs=("frame_descriptors",),
        place="search/<network>/index-<number>/, search/current.json",
    ),
    Step(
        name="duplicate_pairs",
        does="finds pairs of the shard's videos with all others that share footage",
        job="duplicates",
        make="hapvr.chain:pair_duplicates",
        inputs=("search_index",),
        per_shard=True,
        gpu=True,
    ),
    Step(
        name="duplicate_groups",
        does="groups copies and says which to keep",
        job="group",
        make="hapvr.chain:group_duplicates",
        inputs=("duplicate_pairs",),
    ),
    Step(
        name="watch_matches",
        does="compares the queries of watch lists with the shard, and posts matches on request",
        job="watch",
        make="hapvr.chain:match_watch_lists",
        inputs=("search_index",),
        place="watch_matches/<shard>/, watch/outbox.db",
        per_shard=True,
        gpu=True,
    ),
)

CHAIN: Mapping[str, Step] = {step.name: step for step in _STEPS}
"""All steps by name, each after its inputs."""

JOBS: Mapping[Job, tuple[Step, ...]] = {
    job: tuple(step for step in _STEPS if step.job == job) for job in dict.fromkeys(step.job for step in _STEPS)
}
"""The steps of every job, in the order in which jobs are needed."""


def shards_of(project: Project, step: Step) -> list[str]:
    """The shards that a step is made for, sorted; [""] for a step without shards."""
    if not step.per_shard:
        return [""]
    return training_shard_keys(read_manifest(project.root)) if step.training_only else shard_keys(project.root)


def fit_whitening(project: Project, *, progress: Progress = no_progress) -> Any:
    from hapvr.steps.whitening import make_whitening

    return make_whitening(project, training_shard_keys(read_manifest(project.root)), progress=progress)


def train_model(project: Project, *, run: str, progress: Progress = no_progress) -> Any:
    """Train in processes of this one; Dagster's asset starts the same command through Pipes. run: the training's key."""
    from hapvr.steps.training import finish_training, prepare_training, run_training

    training = prepare_training(project, run, tags={})
    run_training(project, training)
    finish_training(project, training)
    return training


def score_benchmarks(project: Project, *, run: str = "", progress: Progress = no_progress) -> dict[str, Any]:
    """The scores of every benchmark by name. run: of the training; "" for the current one."""
    from hapvr.steps.evaluation import make_benchmark_scores
    from hapvr.steps.training import trained_run

    training, names = trained_run(project, run), project.config.evaluation.benchmarks
    made = {}
    for number, name in enumerate(names, start=1):
        made[name] = make_benchmark_scores(project, training, name)
        progress(number, len(names))
    return made


def register_model(
    project: Project, *, run: str = "", tags: Mapping[str, str] | None = None, progress: Progress = no_progress
) -> Any:
    from hapvr.steps.registration import make_registered_model
    from hapvr.steps.training import trained_run

    return make_registered_model(project, trained_run(project, run), tags=tags or {})


def describe_frames(project: Project, key: str, *, progress: Progress = no_progress) -> Any:
    from hapvr.steps.search_index import make_descriptors
    from hapvr.steps.search_model import search_model

    return make_descriptors(project, key, search_model(project), progress=progress)


def index_frames(project: Project, *, progress: Progress = no_progress) -> Any:
    from hapvr.steps.search_index import update_index
    from hapvr.steps.search_model import search_model

    return update_index(project, search_model(project), progress=progress)


def pair_duplicates(project: Project, key: str, *, progress: Progress = no_progress) -> Any:
    from hapvr.steps.duplicates import make_duplicate_pairs
    from hapvr.steps.searcher import Searcher

    return make_duplicate_pairs(project, Searcher.open(project), key, progress=progress)


def group_duplicates(project: Project, *, progress: Progress = no_progress) -> Any:
    from hapvr.steps.duplicates import make_duplicate_groups
    from hapvr.steps.searcher import Searcher

    return make_duplicate_groups(project, Searcher.open(project))


def match_watch_lists(project: Project, key: str, *, progress: Progress = no_progress) -> Any:
    from hapvr.steps.searcher import Searcher
    from hapvr.steps.watch_lists import make_watch_matches

    return make_watch_matches(project, Searcher.open(project), key, progress=progress)


def outdated(project: Project) -> dict[str, dict[str, str]]:
    """What the steps after registration lack now: step -> shard key ("" without shards) -> a digest of what asks for it.

    The digest differs when the same shard is asked for again, e.g. as a champion comes back. A step is not asked for while
    one before it is. Steps that the configuration does not use ask for nothing.
    """
    found: dict[str, dict[str, str]] = {}
    model = _champion(project)
    if model is None:
        return found
    from hapvr.steps.search_index import outdated_index

    index, known = outdated_index(project, model), shard_keys(project.root)
    # Imported features are not shards of the manifest; the index describes them itself.
    found["frame_descriptors"] = {key: digest for key, digest in index.undescribed.items() if key in known}
    if index.outdated:
        found["search_index"] = {} if found["frame_descriptors"] else {"": index.digest}
        return found
    from hapvr.steps.duplicates import outdated_duplicates
    from hapvr.steps.watch_lists import unwatched_shards

    if project.config.automation.duplicates:
        duplicates = outdated_duplicates(project)
        found["duplicate_pairs"] = duplicates.uncompared
        found["duplicate_groups"] = {"": duplicates.groups} if duplicates.groups and not duplicates.uncompared else {}
    if project.config.watch.lists:
        found["watch_matches"] = unwatched_shards(project)
    return found


def _champion(project: Project) -> SearchModel | None:
    from hapvr.steps.search_model import search_model

    try:
        return search_model(project)
    except DataError:
        return None


@dataclass(frozen=True)
class StepStatus:
    """done and missing: shards, or 1 and 0 of a step without shards; failed_videos: rows with a reason in its shards."""

    step: str
    done: int
    missing: int
    failed_videos: int = 0


def chain_status(project: Project) -> list[StepStatus]:
    """How far every step is, from what is stored below the data root."""
    awaited, found = outdated(project), []
    for step in _STEPS:
        keys = shards_of(project, step)
        if step.job in ("describe", "index", "duplicates", "group", "watch"):
            used = step.name in awaited
            missing = len(awaited.get(step.name, {}))
            found.append(StepStatus(step.name, len(keys) - missing if used else 0, missing))
        elif step.per_shard:
            stored = {key: project.shard(step.name, key).finished_rows() for key in keys}
            done = [rows for one in stored.values() if one is not None for rows in one[1]]
            failed = sum(row["status"] != STATUS_OK for row in done)
            missing = sum(one is None for one in stored.values())
            found.append(StepStatus(step.name, len(keys) - missing, missing, failed))
        else:
            found.append(StepStatus(step.name, *_done_and_missing(project, step.name)))
    return found


def _done_and_missing(project: Project, name: str) -> tuple[int, int]:
    """Of a step without shards, before the champion: how many things it has made and lacks."""
    from hapvr.steps.training import CURRENT_NAME, current_key

    root, trained = project.root, project.root.exists(CURRENT_NAME)
    if name == "video_manifest":
        return len(shard_keys(root)), 0
    if name == "benchmark_scores" and trained:
        folder = f"models/{current_key(root)}/benchmarks"
        names = project.config.evaluation.benchmarks
        done = sum(root.exists(f"{folder}/{benchmark}/scores.json") for benchmark in names)
        return done, len(names) - done
    there = {
        "whitening": root.exists("whitening/whitening.json"),
        "similarity_model": trained,
        "benchmark_scores": False,
        "registered_model": _champion(project) is not None,
    }[name]
    return int(there), int(not there)
