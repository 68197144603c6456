"""How a model weighs what a search knows of a candidate: fitted on the candidates of real searches
whose answers are known.

Here the searches are for edits of the collection's own frames; `hapvr.steps.calibration` has those
of a benchmark.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hapvr.data.features import IMPORTED, STAGE as FEATURES_STAGE, collection_shards
from hapvr.data.manifest import training_shard_keys
from hapvr.data.shards import STATUS_OK
from hapvr.demo.edits import ALL_EDITS
from hapvr.errors import ArgumentError, VideoError
from hapvr.networks.settings import BATCH_FRAMES
from hapvr.progress import Progress, no_progress
from hapvr.scorer.blank import blank_pictures, mean_directions
from hapvr.scorer.bundle import load_bundle, read_description
from hapvr.scorer.calibration import MIN_PAIRS, Calibration, Floats, fit_calibration
from hapvr.scorer.evidence import FEATURES, EvidenceModel, fit_evidence
from hapvr.scorer.segments import FRAME_PAIRS, FRAME_SPREAD, MAX_FRAME_THRESHOLD, best_run
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.collection import SearchableCollection
from hapvr.search.descriptors import frame_descriptors, index_rows
from hapvr.search.engine import ScoredCandidate, SearchEngine, evidence_of
from hapvr.search.match import thin
from hapvr.search.memory_index import FramesInMemory
from hapvr.seeding import numpy_rng
from hapvr.steps.project import Project
from hapvr.steps.videos import open_frames
from hapvr.video.frames import decode_jpegs, encode_jpeg

MAX_VIDEOS, MAX_FRAMES = 1000, 200_000
"""Videos that are searched, and their frames: memory holds the descriptors."""
EDITED_VIDEOS = 20
INNER_EDIT = "picture_in_picture"
"""What every edited video is also shown in, so that matches by a crop are known well
enough."""
EDITED_FRAMES = 16
"""Frames of a video that an edit shows: what people post is mostly a part."""
COPY_SIMILARITY = 0.75
COPY_FRAME_RUN = 0.9
"""Two videos of the collection that are as similar as this, or of which two consecutive frames are,
may be copies: such pairs are not fitted on."""


Searched = tuple[Floats, NDArray[np.bool_], str]
"""Features [V, N, F] of the candidates of a search by each view, not a number where one did not
find a candidate; which are matches, [N]; and a group: searches of one group are fitted or predicted
together."""


def fit_on_edits(
    project: Project, bundle: Path, shard_of: Mapping[str, str], *, progress: Progress = no_progress
) -> tuple[EvidenceModel | str, Calibration | None]:
    """Fit on searches for edits of some of the collection's videos, and for these themselves, whose
    neighbours are what looks alike in this collection; why not, where there are too few. Also the
    calibration of similarities, for pairs of files.

    shard_of: by video id."""
    if not shard_of:
        return "no video of the training split has features", None
    engine = memory_engine(project, bundle, videos_of(project, dict.fromkeys(shard_of.values())))
    ids = sorted(engine.collection.shard_of)
    order = [ids[place] for place in numpy_rng(0, "edits").permutation(len(ids))[:EDITED_VIDEOS]]
    source = {
        "benchmark": "edits of the collection's own frames",
        "videos": engine.num_videos,
        "edited": len(order),
    }
    searches: list[Searched] = []
    near: dict[str, frozenset[str]] = {}
    for number, video_id in enumerate(order):
        progress(number, 2 * len(order))
        views = candidates_of(engine, engine.collection.whole(video_id))
        found = [one for view in views for one in view]
        copies = {
            one.video_id
            for one in found
            if one.similarity >= COPY_SIMILARITY or one.frame_run >= COPY_FRAME_RUN
        }
        near[video_id] = frozenset(copies | {video_id})
        searches += known(views, matches=frozenset(), hidden=near[video_id], group=video_id)
    for number, video_id in enumerate(order):
        progress(len(order) + number, 2 * len(order))
        donor = order[number - 1]
        drawn = numpy_rng(0, "kinds", video_id).permutation(sorted(ALL_EDITS))[:2]
        kinds = dict.fromkeys([INNER_EDIT, *drawn.tolist()])
        for clip, combined in edited_parts(project, engine, video_id, donor, kinds):
            hidden = near[video_id] - {video_id} | (
                near[donor] - {video_id} if combined else frozenset()
            )
            searches += known(
                candidates_of(engine, clip),
                matches=frozenset({video_id}),
                hidden=hidden,
                group=video_id,
            )
    matches, others = np.zeros(0), np.zeros(0)
    for features, is_match, _ in searches:
        whole = features[0, :, FEATURES.index("frame_run")]
        matches = np.append(matches, whole[is_match & np.isfinite(whole)])
        others = np.append(
            others, np.sort(whole[~is_match & np.isfinite(whole)])[-10:]
        )  # the most similar ones
    calibration = None
    if min(len(matches), len(others)) >= MIN_PAIRS:
        pairs = [(one, other) for one in order for other in ids if other not in near[one]]

        def similarities(place: int) -> Floats:
            videos = (thin(engine.collection.whole(one), 120) for one in pairs[place])
            first, second = (engine.scorer.embed(video) for video in videos)
            return engine.scorer.relative_similarity(first, second)

        threshold = frame_threshold(len(pairs), similarities)
        calibration = fit_calibration(matches, others, source=source, frame_threshold=threshold)
    return fit(searches, num_videos=engine.num_videos, source=source), calibration


def training_videos(project: Project) -> dict[str, str]:
    """Video id -> shard, of all videos of the training split that have features."""
    training = training_shard_keys(project.root)
    return {
        row["video_id"]: key
        for key in collection_shards(project.root)[0]
        if key in training
        for row in project.shard(FEATURES_STAGE, key).rows()
        if row["status"] == STATUS_OK
    }


def edited_parts(
    project: Project, engine: SearchEngine, video_id: str, donor_id: str, kinds: Iterable[str]
) -> Iterator[tuple[SampledFeatures, bool]]:
    """A part of a video after each edit of ALL_EDITS, and whether the donor shows in it."""
    parts: list[NDArray[np.uint8]] = []
    for one in (video_id, donor_id):
        jpegs = open_frames(project, engine.collection.shard_of[one]).read(one).jpegs
        first = int(numpy_rng(0, "part", one).integers(max(len(jpegs) - EDITED_FRAMES, 0) + 1))
        parts.append(decode_jpegs(jpegs[first : first + EDITED_FRAMES]).transpose(0, 2, 3, 1))
    frames, donor = parts
    for kind in kinds:
        edit = ALL_EDITS[kind]
        edited = edit.apply(
            frames, donor, engine.scorer.sampling.fps, numpy_rng(0, "edit", video_id, kind)
        )
        yield engine.scorer.sampled(list(map(encode_jpeg, edited))), edit.combines


def frame_threshold(count: int, similarities: Callable[[int], Floats]) -> float:
    """What most pairs of different videos stay below with their most similar consecutive frames. A
    single frame would not do: unrelated videos share black frames and titles. It is taken from the
    lower half of the pairs: in a collection some are copies that nobody marked.

    count: of the pairs. similarities: relative ones [T, T'] of the frames of a pair, by its number.
    """
    chosen = numpy_rng(0, "frame threshold").permutation(count)[:FRAME_PAIRS].tolist()
    runs = [best_run(similarities(place)) for place in chosen]
    low, middle = np.quantile(runs, (0.05, 0.5))
    return min(float(middle + FRAME_SPREAD * (middle - low)), MAX_FRAME_THRESHOLD)


def videos_of(
    project: Project, keys: Iterable[str], *, first: Iterable[str] = ()
) -> dict[str, str]:
    """Video id -> shard, of videos of some shards that have features: `first` ones and others, up
    to MAX_VIDEOS and MAX_FRAMES."""
    found: dict[str, tuple[str, int]] = {}
    for key in keys:
        rows = project.shard(FEATURES_STAGE, key).rows()
        found |= {
            row["video_id"]: (key, row["num_rows"]) for row in rows if row["status"] == STATUS_OK
        }
    ids = [one for one in dict.fromkeys([*first, *found]) if one in found][:MAX_VIDEOS]
    total = np.cumsum([found[one][1] for one in ids])
    return {
        one: found[one][0] for one, frames in zip(ids, total, strict=True) if frames <= MAX_FRAMES
    }


def memory_engine(project: Project, bundle: Path, shard_of: Mapping[str, str]) -> SearchEngine:
    """A search of some videos, in memory, by the model of a bundle as it will search. shard_of: by
    id, of one video or more."""
    description = read_description(bundle)
    scorer = load_bundle(bundle, device=project.config.device)
    networks: Any = scorer.networks  # of either kind
    require, extras = partial(description.require_features, bundle), networks.needs_extras
    collection = SearchableCollection(project.root, shard_of, require=require, extras=extras)
    blank = np.zeros((0, 0), np.float32)
    if (
        IMPORTED
        not in project.shard(FEATURES_STAGE, next(iter(shard_of.values()))).require({}).settings
    ):
        pictures = blank_pictures(description.crop_px)
        starts = range(0, len(pictures), BATCH_FRAMES)
        regions = [networks.regions(pictures[start : start + BATCH_FRAMES]) for start in starts]
        blank = mean_directions(networks.vectors(networks.embed(np.concatenate(regions))))
    names: list[str] = []
    columns: list[tuple[Any, ...]] = []
    for video_id in collection.shard_of:
        video = collection.whole(video_id)
        found = frame_descriptors(scorer.networks.vectors(scorer.embed(video).regions), blank=blank)
        names += [video_id] * len(video.hashes)
        columns.append(
            (video.clock.times_s, video.hashes, found.vectors.astype(np.float16), found.kept)
        )
    times, hashes, vectors, kept = (np.concatenate(column) for column in zip(*columns, strict=True))
    frames = pa.table({"video_id": names, "timestamp_s": times, "hash": hashes})
    return SearchEngine(
        scorer=scorer,
        index=FramesInMemory(index_rows(frames, vectors, kept)),
        collection=collection,
        num_videos=len(columns),
        blank=blank,
        candidates=project.config.search.candidates,
    )


def candidates_of(engine: SearchEngine, video: SampledFeatures) -> list[list[ScoredCandidate]]:
    """What each view of a video finds; nothing where it shows nothing."""
    try:
        return engine.score_views(engine.scorer.views(video))[0]
    except VideoError:
        return []


def known(
    views: Sequence[Sequence[ScoredCandidate]],
    *,
    matches: frozenset[str],
    hidden: frozenset[str],
    group: str,
) -> Iterator[Searched]:
    """A search with its matches, and without them, as if the query had none. views: candidates of
    each; hidden: unknown ids, left out."""
    shown = [[one for one in view if one.video_id not in hidden] for view in views]
    place = {
        name: number
        for number, name in enumerate(dict.fromkeys(one.video_id for view in shown for one in view))
    }
    features = np.full((len(shown), len(place), len(FEATURES)), np.nan)
    for number, view in enumerate(shown):
        features[number, [place[one.video_id] for one in view]] = evidence_of(view)
    is_match = np.array([name in matches for name in place], bool)
    for kept in (np.ones_like(is_match), ~is_match)[not matches :] if place else ():
        yield features[:, kept], is_match[kept], group


def fit(
    searches: Sequence[Searched], *, num_videos: int, source: Mapping[str, Any]
) -> EvidenceModel | str:
    """The model of evidence; why not, where there are too few searches."""
    try:
        return fit_evidence(
            [(found, match) for found, match, _ in searches],
            [name for *_, name in searches],
            num_videos=num_videos,
            source=source,
        )
    except ArgumentError as error:
        return str(error)
