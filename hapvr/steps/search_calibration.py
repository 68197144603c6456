"""How a model weighs what a search knows of a candidate: fitted on the candidates of real searches whose answers are known.

The searches are those of the validation benchmark, or, for the untrained baseline, for edits of the collection's own frames.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from PIL import Image

from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.features import collection_shards
from hapvr.data.shards import STATUS_OK
from hapvr.demo.edits import ALL_EDITS
from hapvr.errors import ArgumentError, VideoError
from hapvr.networks.settings import BATCH_FRAMES
from hapvr.progress import Progress, no_progress
from hapvr.scorer.bundle import load_bundle
from hapvr.scorer.description import read_description
from hapvr.scorer.evidence import EvidenceModel, fit_evidence
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.collection import SearchableCollection
from hapvr.search.descriptors import ShardIndex, blank_pictures, frame_descriptors, index_rows, mean_directions
from hapvr.search.engine import SearchEngine
from hapvr.search.evidence import evidence_of
from hapvr.seeding import numpy_rng
from hapvr.steps.benchmark_features import benchmark_shards, project_benchmark, stored_ids
from hapvr.steps.calibration import broadest_task
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project
from hapvr.video.frames import encode_jpeg

MAX_QUERIES = 150
MAX_VIDEOS = 1000
"""Videos that are searched: memory holds their descriptors."""
EDITED_VIDEOS = 40
EDITS_EACH = 3
EDITED_FRAMES = 16
"""Frames of a video that an edit shows: what people post is mostly a part."""
COPY_SIMILARITY = 0.75
"""Two videos of the collection that are as similar as this, or share a hash, may be copies: such pairs are not fitted on."""


@dataclass(frozen=True)
class Asked:
    """A search whose answer is known. matches: ids that show its footage. hidden: ids of which nothing is known, which are not
    searched. group: searches of one group are fitted or predicted together."""

    query: SampledFeatures
    matches: frozenset[str]
    hidden: frozenset[str]
    group: int


def fit_on_validation(project: Project, bundle: Path) -> EvidenceModel | str:
    """Fit on searches for the videos of the validation benchmark among these and those of the training split; why not, where
    there are too few.

    Each video is searched for twice: with its matches in the collection, and without them, as a query that has none.
    """
    name = project.config.evaluation.validation
    if name is None:
        return "the configuration names no validation benchmark"
    definition = project_benchmark(project, name)
    keys = benchmark_shards(project, name)
    stored = stored_ids(definition, _videos(project, keys))
    engine = _engine(project, bundle, _videos(project, dict.fromkeys([*keys, *collection_shards(project.root)[0]])))
    positives = broadest_task(definition).positives
    pairs = [
        (stored[query], stored[reference], label in positives)
        for query, reference, label in definition.labels.iter_rows()
        if query in stored and reference in stored and query != reference
    ]
    groups = {query: number for number, query in enumerate(dict.fromkeys(query for query, *_ in pairs))}
    related: dict[str, set[str]] = {}
    matches: dict[str, set[str]] = {}
    for query, reference, is_match in pairs:
        for one, other in ((query, reference), (reference, query)):
            related.setdefault(one, set()).add(other)
            if is_match:
                matches.setdefault(one, set()).add(other)
        groups.setdefault(reference, groups[query])
    ids = [sorted(groups)[place] for place in numpy_rng(0, "searches").permutation(len(groups))[:MAX_QUERIES]]

    def asked() -> Iterator[Asked]:
        for one in ids:
            video, own = engine.collection.whole(one), frozenset(matches.get(one, ()))
            near = {other for middle in related[one] for other in related[middle]} | related[one] | {one}
            yield Asked(video, own, frozenset(near - own), groups[one])
            yield Asked(video, frozenset(), frozenset(near), groups[one])

    return _fit(engine, asked(), source={"benchmark": name, "videos": engine.num_videos})


def fit_on_edits(
    project: Project, bundle: Path, shard_of: Mapping[str, str], *, progress: Progress = no_progress
) -> EvidenceModel | str:
    """Fit on searches for edits of some of the collection's videos, and for these themselves, whose neighbours are what looks
    alike in this collection; why not, where there are too few. shard_of: by video id."""
    engine = _engine(project, bundle, shard_of)
    ids = sorted(engine.collection.shard_of)
    order = [ids[place] for place in numpy_rng(0, "edits").permutation(len(ids))[:EDITED_VIDEOS]]

    def frames(video_id: str) -> np.ndarray[Any, Any]:
        jpegs = open_frames(project, shard_of[video_id]).read(video_id).jpegs
        first = int(numpy_rng(0, "part", video_id).integers(max(len(jpegs) - EDITED_FRAMES, 0) + 1))
        shown = [Image.open(io.BytesIO(jpeg), formats=["JPEG"]) for jpeg in jpegs[first : first + EDITED_FRAMES]]
        return np.stack([np.asarray(frame.convert("RGB").resize(shown[0].size)) for frame in shown])

    def asked() -> Iterator[Asked]:
        for group, video_id in enumerate(order):
            progress(group, len(order))
            video = engine.collection.whole(video_id)
            embedded = engine.scorer.embed(video)
            try:
                found, _ = engine.score(embedded, engine.shortlist(embedded))
            except VideoError:  # it shows nothing
                continue
            copies = {one.video_id for one in found if one.similarity >= COPY_SIMILARITY or one.candidate.num_aligned}
            others = frozenset(copies - {video_id})
            yield Asked(video, frozenset(), others | {video_id}, group)
            own, donor = frames(video_id), frames(order[group - 1])
            kinds = numpy_rng(0, "kinds", video_id).permutation(sorted(ALL_EDITS))[:EDITS_EACH]
            for kind in kinds:
                rng = numpy_rng(0, "edit", video_id, str(kind))
                edited = ALL_EDITS[str(kind)].apply(own, donor, engine.scorer.sampling.fps, rng)
                hidden = others | ({order[group - 1]} if ALL_EDITS[str(kind)].combines else set())
                yield Asked(engine.scorer.sampled(list(map(encode_jpeg, edited))), frozenset({video_id}), hidden, group)

    source = {"benchmark": "edits of the collection's own frames", "videos": engine.num_videos, "edited": len(order)}
    return _fit(engine, asked(), source=source)


def _videos(project: Project, keys: Iterable[str]) -> dict[str, str]:
    """Video id -> shard, of the videos of some shards that have features."""
    return {
        video_id: key
        for key in keys
        for video_id in project.shard(FEATURES_STAGE, key).index().filter(pl.col("status") == STATUS_OK)["video_id"]
    }


def _engine(project: Project, bundle: Path, shard_of: Mapping[str, str]) -> SearchEngine:
    """A search of the first videos, in memory, by the model of a bundle as it will search."""
    description = read_description(bundle)
    scorer = load_bundle(bundle, device=project.config.device, dtype=project.config.search.dtype)
    collection = SearchableCollection(
        project.root,
        dict(list(shard_of.items())[:MAX_VIDEOS]),
        require=lambda settings: description.require_features(bundle, settings),
        extras=scorer.networks.needs_extras,
    )
    pictures = blank_pictures(description.crop_px)
    regions = [scorer.networks.regions(pictures[at : at + BATCH_FRAMES]) for at in range(0, len(pictures), BATCH_FRAMES)]
    blank = mean_directions(scorer.networks.vectors(scorer.networks.embed(np.concatenate(regions))))
    names: list[str] = []
    columns: list[tuple[Any, ...]] = []
    for video_id in collection.shard_of:
        video = collection.whole(video_id)
        found = frame_descriptors(scorer.networks.vectors(scorer.embed(video).regions), blank=blank)
        names += [video_id] * len(video.hashes)
        columns.append((video.clock.times_s, video.hashes, found.vectors, found.kept))
    times, hashes, vectors, kept = (np.concatenate(column) for column in zip(*columns, strict=True))
    frames = pa.table({"video_id": names, "timestamp_s": times, "hash": hashes})
    return SearchEngine(
        scorer=scorer,
        index=ShardIndex(index_rows(frames, vectors, kept)),
        collection=collection,
        num_videos=len(columns),
        blank=blank,
        candidates=project.config.search.candidates,
    )


def _fit(engine: SearchEngine, searches: Iterable[Asked], *, source: Mapping[str, Any]) -> EvidenceModel | str:
    features, is_match, groups = [], [], []
    for asked in searches:
        query = engine.scorer.embed(asked.query)
        try:
            candidates = engine.shortlist(query, allowed=lambda one, hidden=asked.hidden: one not in hidden)  # type: ignore[misc]
        except VideoError:  # it shows nothing
            continue
        scored, _ = engine.score(query, candidates)
        features.append(evidence_of(scored))
        is_match += [one.video_id in asked.matches for one in scored]
        groups += [asked.group] * len(scored)
    try:
        return fit_evidence(np.concatenate(features), np.array(is_match, bool), np.array(groups), source=source)
    except (ArgumentError, ValueError) as error:
        return f"too few searches: {error}"
