"""How a model weighs what a search knows of a candidate: fitted on the candidates of real searches whose answers are known.

The searches are those of the validation benchmark, or, for the untrained baseline, for edits of the collection's own frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.features import FeatureStore
from hapvr.data.frames import STAGE as FRAMES_STAGE
from hapvr.data.manifest import TRAIN, read_manifest
from hapvr.data.shards import STATUS_OK
from hapvr.demo.edits import ALL_EDITS
from hapvr.errors import ArgumentError, VideoError
from hapvr.networks.settings import BATCH_FRAMES
from hapvr.progress import Progress, no_progress
from hapvr.scorer.bundle import load_bundle
from hapvr.scorer.calibration import MIN_PAIRS, Calibration, fit_calibration
from hapvr.scorer.description import read_description
from hapvr.scorer.evidence import FEATURES, EvidenceModel, fit_evidence
from hapvr.scorer.logistic import Floats
from hapvr.scorer.segments import best_run
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.collection import SearchableCollection
from hapvr.search.descriptors import ShardIndex, blank_pictures, frame_descriptors, index_rows, mean_directions
from hapvr.search.engine import SearchEngine
from hapvr.search.evidence import evidence_of
from hapvr.search.match import thin
from hapvr.seeding import numpy_rng
from hapvr.steps.benchmark_features import benchmark_shards, project_benchmark, stored_ids
from hapvr.steps.calibration import FRAME_PAIRS, FRAME_QUANTILE, MAX_FRAME_THRESHOLD, broadest_task
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project
from hapvr.steps.sources import source_scenes
from hapvr.video.frames import decode_jpegs, encode_jpeg

MAX_QUERIES = 100
MAX_VIDEOS, MAX_FRAMES = 1000, 200_000
"""Videos that are searched, and their frames: memory holds the descriptors."""
EDITED_VIDEOS = 40
EDITS_EACH = 2
INNER_EDIT = "picture_in_picture"
"""What every edited video is also shown in, so that matches by an inner picture are known well enough."""
EDITED_FRAMES = 16
"""Frames of a video that an edit shows: what people post is mostly a part."""
RANKED = 10
"""Other videos of each search that the calibration sees, the most similar ones."""
OTHER_FRAMES = 120
COPY_SIMILARITY = 0.75
"""Two videos of the collection that are as similar as this, or share a hash, may be copies: such pairs are not fitted on."""


@dataclass(frozen=True)
class Asked:
    """A search whose answer is known. matches: ids that show its footage. hidden: ids of which nothing is known, which are not
    searched. group: searches of one group are fitted or predicted together."""

    query: SampledFeatures
    matches: frozenset[str]
    hidden: frozenset[str]
    group: str


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
    engine = _engine(project, bundle, _shard_of(project, dict.fromkeys([*keys, *finished]), first=first))
    ids = [one for one in ids if one in engine.collection.shard_of]
    near = {one: {other for middle in (one, *related[one]) for other in related[middle]} | {one} for one in ids}
    for one in ids:
        near[one] |= {other for other, scene in scenes.items() if scene == scenes.get(one)}
    framed = [
        one for one in ids if project.shard(FRAMES_STAGE, engine.collection.shard_of[one]).provenance() is not None
    ]

    def asked() -> Iterator[Asked]:
        for one in ids:
            group = scenes.get(one) or min(near[one])
            hidden = frozenset(near[one] - matches[one])
            yield Asked(engine.collection.whole(one), frozenset(matches[one]), hidden, group)
        for place, one in enumerate(framed[:EDITED_VIDEOS]):
            donor = framed[place - 1]
            for clip, _ in _edited(project, engine, one, donor, [INNER_EDIT]):
                hidden = frozenset((near[one] | near[donor]) - {one})
                yield Asked(clip, frozenset({one}), hidden, scenes.get(one) or min(near[one]))

    source = {"benchmark": name, "videos": engine.num_videos, "edited": min(len(framed), EDITED_VIDEOS)}
    return _fit(list(_searched(engine, asked())), source=source)


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


def fit_on_edits(
    project: Project, bundle: Path, shard_of: Mapping[str, str], *, progress: Progress = no_progress
) -> tuple[EvidenceModel | str, Calibration | None]:
    """Fit on searches for edits of some of the collection's videos, and for these themselves, whose neighbours are what looks
    alike in this collection; why not, where there are too few. Also the calibration of similarities, for pairs of files.

    shard_of: by video id.
    """
    engine = _engine(project, bundle, _shard_of(project, dict.fromkeys(shard_of.values())))
    ids = sorted(engine.collection.shard_of)
    order = [ids[place] for place in numpy_rng(0, "edits").permutation(len(ids))[:EDITED_VIDEOS]]

    def asked() -> Iterator[Asked]:
        for number, video_id in enumerate(order):
            progress(number, len(order))
            video = engine.collection.whole(video_id)
            embedded = engine.scorer.embed(video)
            try:
                found, _ = engine.score(embedded, engine.shortlist(embedded))
            except VideoError:  # it shows nothing
                continue
            copies = {one.video_id for one in found if one.similarity >= COPY_SIMILARITY or one.candidate.num_aligned}
            others = frozenset(copies - {video_id})
            yield Asked(video, frozenset(), others | {video_id}, video_id)
            donor = order[number - 1]
            drawn = numpy_rng(0, "kinds", video_id).permutation(sorted(ALL_EDITS))[:EDITS_EACH]
            for clip, combined in _edited(
                project, engine, video_id, donor, dict.fromkeys([INNER_EDIT, *drawn.tolist()])
            ):
                yield Asked(clip, frozenset({video_id}), others | ({donor} if combined else set()), video_id)

    source = {"benchmark": "edits of the collection's own frames", "videos": engine.num_videos, "edited": len(order)}
    searches = list(_searched(engine, asked()))
    matches, others = np.zeros(0), np.zeros(0)
    for one in searches:
        whole = one.features[0, :, FEATURES.index("similarity")]
        matches = np.append(matches, whole[one.is_match & np.isfinite(whole)])
        others = np.append(others, np.sort(whole[~one.is_match & np.isfinite(whole)])[-RANKED:])
    calibration = None
    if min(len(matches), len(others)) >= MIN_PAIRS:
        threshold = _frame_threshold(engine, order)
        calibration = fit_calibration(matches, others, source=source, frame_threshold=threshold)
    return _fit(searches, source=source), calibration


def _edited(
    project: Project, engine: SearchEngine, video_id: str, donor_id: str, kinds: Iterable[str]
) -> Iterator[tuple[SampledFeatures, bool]]:
    """A part of a video after each edit of ALL_EDITS, and whether the donor shows in it."""
    frames, donor = (_frames(project, engine.collection.shard_of[one], one) for one in (video_id, donor_id))
    for kind in kinds:
        edit = ALL_EDITS[kind]
        edited = edit.apply(frames, donor, engine.scorer.sampling.fps, numpy_rng(0, "edit", video_id, kind))
        yield engine.scorer.sampled(list(map(encode_jpeg, edited))), edit.combines


def _frames(project: Project, key: str, video_id: str) -> NDArray[np.uint8]:
    """[N, H, W, 3], a part of a video as it is stored."""
    jpegs = open_frames(project, key).read(video_id).jpegs
    first = int(numpy_rng(0, "part", video_id).integers(max(len(jpegs) - EDITED_FRAMES, 0) + 1))
    return decode_jpegs(jpegs[first : first + EDITED_FRAMES]).transpose(0, 2, 3, 1)


def _frame_threshold(engine: SearchEngine, ids: Sequence[str]) -> float:
    """What FRAME_QUANTILE of the pairs of different videos stay below with their most similar consecutive frames."""
    pairs = list(combinations(ids, 2))
    runs = []
    for place in numpy_rng(0, "frame threshold").permutation(len(pairs))[:FRAME_PAIRS]:
        videos = (thin(engine.collection.whole(one), OTHER_FRAMES) for one in pairs[place])
        first, second = (engine.scorer.embed(video) for video in videos)
        runs.append(best_run(engine.scorer.relative_similarity(first, second)))
    return min(float(np.quantile(runs, FRAME_QUANTILE)), MAX_FRAME_THRESHOLD)


def _shard_of(project: Project, keys: Iterable[str], *, first: Iterable[str] = ()) -> dict[str, str]:
    """Video id -> shard, of videos of some shards that have features: `first` ones and others, up to MAX_VIDEOS and MAX_FRAMES."""
    found: dict[str, tuple[str, int]] = {}
    for key in keys:
        rows = project.shard(FEATURES_STAGE, key).index().filter(pl.col("status") == STATUS_OK)
        found |= {video_id: (key, count) for video_id, count in rows.select("video_id", "num_rows").iter_rows()}
    ids = [one for one in dict.fromkeys([*first, *found]) if one in found][:MAX_VIDEOS]
    total = np.cumsum([found[one][1] for one in ids])
    return {one: found[one][0] for one, frames in zip(ids, total, strict=True) if frames <= MAX_FRAMES}


def _engine(project: Project, bundle: Path, shard_of: Mapping[str, str]) -> SearchEngine:
    """A search of some videos, in memory, by the model of a bundle as it will search. shard_of: by id, of one video or more."""
    description = read_description(bundle)
    scorer = load_bundle(bundle, device=project.config.device, dtype=project.config.search.dtype)
    collection = SearchableCollection(
        project.root,
        shard_of,
        require=lambda settings: description.require_features(bundle, settings),
        extras=scorer.networks.needs_extras,
    )
    blank = np.zeros((0, 0), np.float32)
    if "imported" not in project.shard(FEATURES_STAGE, next(iter(shard_of.values()))).require({}).settings:
        pictures = blank_pictures(description.crop_px)
        starts = range(0, len(pictures), BATCH_FRAMES)
        regions = [scorer.networks.regions(pictures[start : start + BATCH_FRAMES]) for start in starts]
        blank = mean_directions(scorer.networks.vectors(scorer.networks.embed(np.concatenate(regions))))
    names: list[str] = []
    columns: list[tuple[Any, ...]] = []
    for video_id in collection.shard_of:
        video = collection.whole(video_id)
        found = frame_descriptors(scorer.networks.vectors(scorer.embed(video).regions), blank=blank)
        names += [video_id] * len(video.hashes)
        columns.append((video.clock.times_s, video.hashes, found.vectors.astype(np.float16), found.kept))
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


@dataclass(frozen=True, eq=False)
class _Searched:
    """features: [V, N, F] of the candidates of a search by each view, not a number where one did not find a candidate, and
    which are matches, [N]."""

    features: Floats
    is_match: NDArray[np.bool_]
    group: str


def _searched(engine: SearchEngine, searches: Iterable[Asked]) -> Iterator[_Searched]:
    for asked in searches:
        try:
            views, _ = engine.score_views(engine.scorer.views(asked.query), allowed=_not_in(asked.hidden))
        except VideoError:  # it shows nothing
            continue
        place = {
            name: number for number, name in enumerate(dict.fromkeys(one.video_id for view in views for one in view))
        }
        features = np.full((len(views), len(place), len(FEATURES)), np.nan)
        for number, found in enumerate(views):
            features[number, [place[one.video_id] for one in found]] = evidence_of(found)
        is_match = np.array([name in asked.matches for name in place], bool)
        for shown in (np.ones_like(is_match), ~is_match)[not asked.matches :]:
            yield _Searched(features[:, shown], is_match[shown], asked.group)


def _fit(searches: Sequence[_Searched], *, source: Mapping[str, Any]) -> EvidenceModel | str:
    candidates = [(one.features, one.is_match) for one in searches]
    try:
        return fit_evidence(candidates, [one.group for one in searches], source=source)
    except ArgumentError as error:
        return str(error)


def _not_in(hidden: frozenset[str]) -> Callable[[str], bool]:
    return lambda video_id: video_id not in hidden
