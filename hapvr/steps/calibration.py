"""What a trained model's answers are worth, fitted on the validation benchmark: similarity to
probability, the threshold of segments, and the evidence of searches."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from matplotlib.figure import Figure

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.ranking import relevant_and_irrelevant
from hapvr.benchmark.report import BLUE, GREY
from hapvr.benchmark.tasks import Task
from hapvr.data.features import STAGE as FEATURES_STAGE, FeatureStore
from hapvr.data.frames import STAGE as FRAMES_STAGE
from hapvr.data.manifest import TRAIN, read_manifest
from hapvr.demo.edits import ALL_EDITS
from hapvr.model.checkpoint import load_network
from hapvr.networks.torch_runtime import choose_device
from hapvr.scorer.calibration import MIN_PAIRS, Calibration, Floats, fit_calibration
from hapvr.scorer.evidence import EvidenceModel
from hapvr.scorer.segments import relative_similarity
from hapvr.search.engine import SearchEngine
from hapvr.seeding import numpy_rng
from hapvr.steps.benchmark_features import (
    benchmark_shards,
    open_benchmark,
    project_benchmark,
    score_stored,
    stored_ids,
)
from hapvr.steps.project import Project
from hapvr.steps.search_calibration import (
    EDITED_VIDEOS,
    INNER_EDIT,
    Searched,
    candidates_of,
    edited_parts,
    fit,
    frame_threshold,
    known,
    memory_engine,
    videos_of,
)
from hapvr.steps.sources import source_scenes
from hapvr.steps.training import TrainingRun

MAX_QUERIES = 50
"""Videos of the validation benchmark that are searched for."""


def calibrate(project: Project, run: TrainingRun) -> Calibration | str:
    """Fit on all labelled pairs of the validation benchmark that have features, never of a test
    benchmark; why not, where too few. A match is a pair that the benchmark's broadest task counts
    as relevant: a copy, an edit, or, where labelled, other footage of the same scene or incident.
    """
    name = project.config.evaluation.validation
    if name is None:
        return "the configuration names no validation benchmark"
    definition, features = open_benchmark(project, name)
    task = broadest_task(definition)
    device = choose_device(project.config.device)
    network = load_network(run.network_folder)[0].to(device)
    scores = score_stored(network, definition, features, device)
    matches, others = relevant_and_irrelevant(definition, scores, task=task.name)
    if min(len(matches), len(others)) < MIN_PAIRS:
        return (
            f"{name} has {len(matches)} matching and {len(others)} other pairs; "
            f"{MIN_PAIRS} of each are needed"
        )

    both = ["query_id", "reference_id"]
    relevant = definition.labels.filter(pl.col("label").is_in(list(task.positives | task.ignored)))
    different = scores.filter(pl.col("query_id") != pl.col("reference_id")).select(both)
    different = different.join(relevant, on=both, how="anti").sort(both)

    def similarities(place: int) -> Floats:
        pair = different.row(place)
        videos = dict(features.read(pair, extras=network.needs_extras))
        with torch.inference_mode():
            embeddings = [network.embed(videos[video_id].float().to(device)) for video_id in pair]
            similarity = network.frame_similarity(*embeddings).cpu().numpy()
            own = [network.self_similarity(video).double().cpu().numpy() for video in embeddings]

        return relative_similarity(similarity, *own)

    source: dict[str, Any] = {
        "benchmark": name,
        "task": task.name,
        "labels": sorted(task.positives),
        "run_key": run.key,
        "shards": features.digests(),
    }
    threshold = frame_threshold(len(different), similarities)
    return fit_calibration(matches, others, source=source, frame_threshold=threshold)


def broadest_task(definition: BenchmarkDefinition) -> Task:
    """The task with the most kinds of relevant labels, the first of equals."""
    return max(definition.tasks, key=lambda task: len(task.positives))


def calibration_figure(calibration: Calibration) -> Figure:
    """The probability by similarity, and the precision that pairs at and above each threshold
    have."""
    figure = Figure(figsize=(5, 4.5), layout="constrained")
    axes = figure.subplots()

    similarities = np.linspace(-1, 1, 201)
    probabilities = [calibration.probability(similarity) for similarity in similarities]
    axes.plot(similarities, probabilities, color=BLUE, label="probability of a match")

    reached = {
        threshold.similarity: threshold.found
        for threshold in calibration.thresholds
        if threshold.similarity is not None
    }
    axes.plot(
        list(reached),
        list(reached.values()),
        "o",
        color=GREY,
        label="precision at and above a threshold",
    )

    counts = f"{calibration.num_matches:,} matches, {calibration.num_others:,} others"
    axes.set(
        xlabel="similarity",
        ylim=(-0.02, 1.02),
        title=f"{counts}; Brier score {calibration.brier:.4f}",
    )
    axes.legend(loc="upper left", fontsize="small")
    return figure


@dataclass(frozen=True)
class _Labels:
    """What a benchmark's labels tell about its stored videos, by the ids that they are stored
    under."""

    matches: Mapping[str, frozenset[str]]
    """what a search for a video has to find, of the videos that have matches"""
    relations: Mapping[str, frozenset[str]]
    """all videos that a label connects with a video, matches among them"""
    scenes: Mapping[str, str]
    """what a video shows"""
    combined: frozenset[str]
    """edits of two clips"""

    def unknown(self, video_id: str) -> frozenset[str]:
        """The video itself and all that may show its footage, whatever the labels say: what a
        label connects with it, what a label connects with these, and other videos of its scene."""
        relations = self.relations[video_id]
        near = {video_id, *relations}
        for related in relations:
            near |= self.relations[related]
        scene = self.scenes.get(video_id)
        near |= {name for name, its_scene in self.scenes.items() if its_scene == scene}
        return frozenset(near)

    def group(self, video_id: str) -> str:
        """Names the videos whose searches are fitted or predicted together."""
        return self.scenes.get(video_id) or min(self.unknown(video_id))


def fit_on_validation(project: Project, bundle: Path) -> EvidenceModel | str:
    """Fit on searches for the videos of the validation benchmark among these and the training
    split; why not, where there are too few. Every candidate counts twice: beside the matches of its
    query, and without them, as if the query had none."""
    name = project.config.evaluation.validation
    if name is None:
        return "the configuration names no validation benchmark"
    labels = _read_labels(
        project, project_benchmark(project, name), benchmark_shards(project, name)
    )
    drawn = _draw_queries(labels)
    engine = _open_engine(project, bundle, labels, drawn, benchmark_shards(project, name))
    queries = [video_id for video_id in drawn if video_id in engine.collection.shard_of]
    framed = [video_id for video_id in queries if _has_frames(project, engine, video_id)]
    searches = [
        *_search_for_videos(engine, labels, queries),
        *_search_for_edits(project, engine, labels, framed),
    ]
    source = {
        "benchmark": name,
        "videos": engine.num_videos,
        "edited": min(len(framed), EDITED_VIDEOS),
    }
    return fit(searches, num_videos=engine.num_videos, source=source)


def _read_labels(
    project: Project, definition: BenchmarkDefinition, shards: Sequence[str]
) -> _Labels:
    """The labels between videos of these shards."""
    stored = stored_ids(definition, FeatureStore(project.root, shards).available())
    positives = broadest_task(definition).positives
    matches = defaultdict[str, set[str]](set)
    relations = defaultdict[str, set[str]](set)
    for query, reference, label in definition.labels.iter_rows():
        if query not in stored or reference not in stored or query == reference:
            continue
        first = stored[query]
        second = stored[reference]
        relations[first].add(second)
        relations[second].add(first)
        if label in positives:
            matches[first].add(second)
            matches[second].add(first)

    return _Labels(
        matches={video_id: frozenset(found) for video_id, found in matches.items()},
        relations={video_id: frozenset(related) for video_id, related in relations.items()},
        scenes=_scenes(project, definition, stored),
        combined=_combined_edits(definition, stored),
    )


def _scenes(
    project: Project, definition: BenchmarkDefinition, stored: Mapping[str, str]
) -> dict[str, str]:
    """Stored id -> what the video shows: the scene that a user named, whose other clips may show
    the same footage, else the clip that an edit was made of."""
    if definition.videos is None or not len(definition.videos):
        return {}
    scene_of_clip: Mapping[str, str] = {}
    for source in project.config.sources:
        if f"{source.name}-validation" == definition.name:
            scene_of_clip = source_scenes(project, source)
            break

    return {
        stored[video_id]: scene_of_clip.get(clip, clip)
        for video_id, clip in definition.videos.select("video_id", "group").iter_rows()
        if video_id in stored
    }


def _combined_edits(definition: BenchmarkDefinition, stored: Mapping[str, str]) -> frozenset[str]:
    """Stored ids of edits of two clips: they also show footage of a clip that no label names."""
    if definition.videos is None:
        return frozenset()
    return frozenset(
        stored[video_id]
        for video_id, edit in definition.videos.select("video_id", "edit").iter_rows()
        if video_id in stored and edit in ALL_EDITS and ALL_EDITS[edit].combines
    )


def _draw_queries(labels: _Labels) -> list[str]:
    """Videos to search for, in a seeded order: such as have matches, and show one clip."""
    usable = sorted(labels.matches.keys() - labels.combined)
    order = numpy_rng(0, "searches").permutation(len(usable))
    return [usable[place] for place in order[:MAX_QUERIES]]


def _open_engine(
    project: Project, bundle: Path, labels: _Labels, queries: Sequence[str], shards: Sequence[str]
) -> SearchEngine:
    """A search of the benchmark's shards and of the training split, in memory.

    The queries and what labels connect with them are in it before all others."""
    first = dict.fromkeys(queries)
    for video_id in queries:
        first |= dict.fromkeys(sorted(labels.relations[video_id]))
    # Held-out files are in the collection too, as the originals of the benchmark.
    trained = read_manifest(project.root).filter(pl.col("split") == TRAIN)["shard"].unique().sort()
    finished = [
        key for key in trained if project.shard(FEATURES_STAGE, key).provenance() is not None
    ]
    keys = dict.fromkeys([*shards, *finished])
    return memory_engine(project, bundle, videos_of(project, keys, first=first))


def _has_frames(project: Project, engine: SearchEngine, video_id: str) -> bool:
    """Whether the frames of a video's shard are there, of which edits are made."""
    key = engine.collection.shard_of[video_id]
    return project.shard(FRAMES_STAGE, key).provenance() is not None


def _search_for_videos(
    engine: SearchEngine, labels: _Labels, queries: Sequence[str]
) -> Iterator[Searched]:
    """Searches for whole videos."""
    for video_id in queries:
        matches = labels.matches[video_id]
        yield from known(
            candidates_of(engine, engine.collection.whole(video_id)),
            matches=matches,
            hidden=labels.unknown(video_id) - matches,
            group=labels.group(video_id),
        )


def _search_for_edits(
    project: Project, engine: SearchEngine, labels: _Labels, framed: Sequence[str]
) -> Iterator[Searched]:
    """Searches for parts of videos, each shown within the video before it. framed: videos that have
    frames."""
    for place, video_id in enumerate(framed[:EDITED_VIDEOS]):
        donor = framed[place - 1]
        unknown = labels.unknown(video_id) | labels.unknown(donor)
        for clip, _ in edited_parts(project, engine, video_id, donor, [INNER_EDIT]):
            yield from known(
                candidates_of(engine, clip),
                matches=frozenset({video_id}),
                hidden=unknown - {video_id},
                group=labels.group(video_id),
            )
