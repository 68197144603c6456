"""Searches for the videos of the validation benchmark, on which a trained model's evidence is fitted."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.features import FeatureStore
from hapvr.data.frames import STAGE as FRAMES_STAGE
from hapvr.data.manifest import TRAIN, read_manifest
from hapvr.demo.edits import ALL_EDITS
from hapvr.scorer.evidence import EvidenceModel
from hapvr.seeding import numpy_rng
from hapvr.steps.benchmark_features import benchmark_shards, project_benchmark, stored_ids
from hapvr.steps.calibration import broadest_task
from hapvr.steps.project import Project
from hapvr.steps.search_calibration import (
    EDITED_VIDEOS,
    INNER_EDIT,
    Searched,
    candidates_of,
    edited_parts,
    fit,
    known,
    memory_engine,
    videos_of,
)
from hapvr.steps.sources import source_scenes

MAX_QUERIES = 50


def fit_on_validation(project: Project, bundle: Path) -> EvidenceModel | str:
    """Fit on searches for the videos of the validation benchmark among these and those of the training split; why not, where
    there are too few.

    Every candidate counts twice: beside the matches of its query, and without them, as if the query had none.
    """
    name = project.config.evaluation.validation
    if name is None:
        return "the configuration names no validation benchmark"
    definition = project_benchmark(project, name)
    keys = benchmark_shards(project, name)
    stored = stored_ids(definition, FeatureStore(project.root, keys).available())
    # held-out files are in the collection too, as the originals of the benchmark
    trained = read_manifest(project.root).filter(pl.col("split") == TRAIN)["shard"].unique().sort()
    finished = [key for key in trained if project.shard(FEATURES_STAGE, key).provenance() is not None]
    positives = broadest_task(definition).positives
    matches: dict[str, set[str]] = {}
    related: dict[str, set[str]] = {}
    for query, reference, label in definition.labels.iter_rows():
        if query in stored and reference in stored and query != reference:
            for one, other in ((stored[query], stored[reference]), (stored[reference], stored[query])):
                related.setdefault(one, set()).add(other)
                if label in positives:
                    matches.setdefault(one, set()).add(other)
    scenes = {stored[video]: scene for video, scene in _scenes(project, definition).items() if video in stored}
    usable = sorted(matches.keys() - {stored[video] for video in _combined(definition) if video in stored})
    ids = [usable[place] for place in numpy_rng(0, "searches").permutation(len(usable))[:MAX_QUERIES]]
    first = dict.fromkeys([*ids, *(other for one in ids for other in sorted(related[one]))])
    engine = memory_engine(project, bundle, videos_of(project, dict.fromkeys([*keys, *finished]), first=first))
    ids = [one for one in ids if one in engine.collection.shard_of]
    near = {one: {other for middle in (one, *related[one]) for other in related[middle]} | {one} for one in ids}
    for one in ids:
        near[one] |= {other for other, scene in scenes.items() if scene == scenes.get(one)}
    framed = [
        one for one in ids if project.shard(FRAMES_STAGE, engine.collection.shard_of[one]).provenance() is not None
    ]

    searches: list[Searched] = []
    for one in ids:
        views, group = candidates_of(engine, engine.collection.whole(one)), scenes.get(one) or min(near[one])
        hidden = frozenset(near[one] - matches[one])
        searches += known(views, matches=frozenset(matches[one]), hidden=hidden, group=group)
    for place, one in enumerate(framed[:EDITED_VIDEOS]):
        donor, group = framed[place - 1], scenes.get(one) or min(near[one])
        for clip, _ in edited_parts(project, engine, one, donor, [INNER_EDIT]):
            hidden = frozenset((near[one] | near[donor]) - {one})
            searches += known(candidates_of(engine, clip), matches=frozenset({one}), hidden=hidden, group=group)
    source = {"benchmark": name, "videos": engine.num_videos, "edited": min(len(framed), EDITED_VIDEOS)}
    return fit(searches, source=source)


def _scenes(project: Project, definition: BenchmarkDefinition) -> dict[str, str]:
    """Video id -> what it shows, of a benchmark that was made of a user's clips: other clips of one scene may be shown by the
    same footage, whatever the labels say."""
    made_of = [one for one in project.config.sources if f"{one.name}-validation" == definition.name]
    named = {} if definition.videos is None or not made_of else source_scenes(project, made_of[0])
    videos = [] if definition.videos is None else definition.videos.select("video_id", "group").iter_rows()
    return {video_id: named.get(group, group) for video_id, group in videos}


def _combined(definition: BenchmarkDefinition) -> list[str]:
    """Videos that also show footage of a clip that nobody labelled, and that others may show as well."""
    kinds = [kind for kind, edit in ALL_EDITS.items() if edit.combines]
    videos = definition.videos
    return [] if videos is None else videos.filter(pl.col("edit").is_in(kinds))["video_id"].to_list()
