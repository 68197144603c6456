"""What a trained model's answers are worth, fitted on the validation benchmark: similarity to
probability, the threshold of segments, and the evidence of searches."""

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
            first, second = (network.embed(videos[video].float().to(device)) for video in pair)
            own = (
                network.self_similarity(video).double().cpu().numpy() for video in (first, second)
            )
            return relative_similarity(network.frame_similarity(first, second).cpu().numpy(), *own)

    source: dict[str, Any] = {
        "benchmark": name,
        "task": task.name,
        "labels": sorted(task.positives),
    }
    source |= {"run_key": run.key, "shards": features.digests()}
    threshold = frame_threshold(len(different), similarities)
    return fit_calibration(matches, others, source=source, frame_threshold=threshold)


def broadest_task(definition: BenchmarkDefinition) -> Task:
    """The task with the most kinds of relevant labels, the first of equals."""
    return max(definition.tasks, key=lambda task: len(task.positives))


def calibration_figure(calibration: Calibration) -> Figure:
    """The probability by similarity, and the precision that pairs at and above each threshold
    have."""
    figure, similarity = Figure(figsize=(5, 4.5), layout="constrained"), np.linspace(-1, 1, 201)
    axes = figure.subplots()
    axes.plot(
        similarity,
        list(map(calibration.probability, similarity)),
        color=BLUE,
        label="probability of a match",
    )
    reached = [
        (one.similarity, one.found) for one in calibration.thresholds if one.similarity is not None
    ]
    axes.plot(
        *np.reshape(reached, (-1, 2)).T, "o", color=GREY, label="precision at and above a threshold"
    )
    counts = f"{calibration.num_matches:,} matches, {calibration.num_others:,} others"
    axes.set(
        xlabel="similarity",
        ylim=(-0.02, 1.02),
        title=f"{counts}; Brier score {calibration.brier:.4f}",
    )
    axes.legend(loc="upper left", fontsize="small")
    return figure


def fit_on_validation(project: Project, bundle: Path) -> EvidenceModel | str:
    """Fit on searches for the videos of the validation benchmark among these and the training
    split; why not, where there are too few. Every candidate counts twice: beside the matches of its
    query, and without them, as if the query had none."""
    name = project.config.evaluation.validation
    if name is None:
        return "the configuration names no validation benchmark"
    definition, keys = project_benchmark(project, name), benchmark_shards(project, name)
    stored = stored_ids(definition, FeatureStore(project.root, keys).available())
    # held-out files are in the collection too, as the originals of the benchmark
    trained = read_manifest(project.root).filter(pl.col("split") == TRAIN)["shard"].unique().sort()
    finished = [
        key for key in trained if project.shard(FEATURES_STAGE, key).provenance() is not None
    ]
    positives = broadest_task(definition).positives
    matches: dict[str, set[str]] = {}
    related: dict[str, set[str]] = {}
    for query, reference, label in definition.labels.iter_rows():
        if query in stored and reference in stored and query != reference:
            for one, other in (
                (stored[query], stored[reference]),
                (stored[reference], stored[query]),
            ):
                related.setdefault(one, set()).add(other)
                if label in positives:
                    matches.setdefault(one, set()).add(other)
    videos = (
        []
        if definition.videos is None
        else definition.videos.select("video_id", "group", "edit").rows()
    )
    # other clips of a user's scene may be shown by the same footage, whatever the labels say
    made_of = [one for one in project.config.sources if f"{one.name}-validation" == definition.name]
    named = source_scenes(project, made_of[0]) if made_of and videos else {}
    scenes = {
        stored[video]: named.get(group, group) for video, group, _ in videos if video in stored
    }
    # those of two clips also show footage of one that nobody labelled, and that others may show as
    # well
    combining = {kind for kind, edit in ALL_EDITS.items() if edit.combines}
    combined = {stored[video] for video, _, edit in videos if video in stored and edit in combining}
    usable = sorted(matches.keys() - combined)
    ids = [
        usable[place] for place in numpy_rng(0, "searches").permutation(len(usable))[:MAX_QUERIES]
    ]
    first = dict.fromkeys([*ids, *(other for one in ids for other in sorted(related[one]))])
    engine = memory_engine(
        project, bundle, videos_of(project, dict.fromkeys([*keys, *finished]), first=first)
    )
    ids = [one for one in ids if one in engine.collection.shard_of]
    near = {
        one: {other for middle in (one, *related[one]) for other in related[middle]} | {one}
        for one in ids
    }
    for one in ids:
        near[one] |= {other for other, scene in scenes.items() if scene == scenes.get(one)}
    shard_of = engine.collection.shard_of
    framed = [
        one for one in ids if project.shard(FRAMES_STAGE, shard_of[one]).provenance() is not None
    ]

    searches: list[Searched] = []
    for one in ids:
        views, group = (
            candidates_of(engine, engine.collection.whole(one)),
            scenes.get(one) or min(near[one]),
        )
        hidden = frozenset(near[one] - matches[one])
        searches += known(views, matches=frozenset(matches[one]), hidden=hidden, group=group)
    for place, one in enumerate(framed[:EDITED_VIDEOS]):
        donor, group = framed[place - 1], scenes.get(one) or min(near[one])
        for clip, _ in edited_parts(project, engine, one, donor, [INNER_EDIT]):
            hidden = frozenset((near[one] | near[donor]) - {one})
            searches += known(
                candidates_of(engine, clip), matches=frozenset({one}), hidden=hidden, group=group
            )
    source = {
        "benchmark": name,
        "videos": engine.num_videos,
        "edited": min(len(framed), EDITED_VIDEOS),
    }
    return fit(searches, num_videos=engine.num_videos, source=source)
