"""How a model weighs the evidence on a candidate: fitted on the candidates of real searches whose
answers are known.

Here the searches are for edits of the collection's own frames; `hapvr.steps.calibration` has those
of a benchmark.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from hapvr.scorer import evidence_kinds
from hapvr.scorer.blank import blank_pictures, mean_directions
from hapvr.scorer.calibration import MIN_PAIRS, Calibration, Floats, fit_calibration
from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.evidence import EvidenceModel, fit_evidence
from hapvr.scorer.evidence_kinds import FRAME_RUN
from hapvr.scorer.open_bundle import OpenBundle
from hapvr.scorer.scorer import VideoScorer
from hapvr.scorer.segments import FRAME_PAIRS, FRAME_SPREAD, MAX_FRAME_THRESHOLD, best_run
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.collection import SearchableCollection
from hapvr.search.descriptors import frame_descriptors, index_rows
from hapvr.search.engine import SearchEngine
from hapvr.search.match import thin
from hapvr.search.memory_index import FramesInMemory
from hapvr.search.scored import ScoredCandidate
from hapvr.seeding import numpy_rng
from hapvr.steps.frames import open_frames
from hapvr.steps.project import Project
from hapvr.video.frames import decode_jpegs, encode_jpeg

MAX_VIDEOS = 1000
"""The most videos that are searched."""
MAX_FRAMES = 200_000
"""The most frames of these videos, since their descriptors are in memory."""
EDITED_VIDEOS = 20
INNER_EDIT = "picture_in_picture"
"""The edit in which every edited video is also shown, so that there are enough matches by a
crop."""
EDITED_FRAMES = 16
"""The most frames of a video that an edit shows: people mostly post parts."""
PAIR_FRAMES = 120
"""The most frames of a video that are compared with those of a different one."""
NEAREST_OTHERS = 10
"""How many candidates of a search that are not matches similarities are fitted on."""
COPY_SIMILARITY = 0.75
COPY_FRAME_RUN = 0.9
"""Two videos of the collection that are as similar as this, or have two consecutive frames that
are, may be copies: such pairs are not used for fitting."""


Searched = tuple[Floats, NDArray[np.bool_], str]
"""Features [V, N, F] of the candidates of a search by each view, NaN where a view did not find a
candidate; which of them are matches, [N]; and a group: searches of one group are fitted or
predicted together."""


def fit_on_edits(
    project: Project, bundle: Path, shard_of: Mapping[str, str], *, progress: Progress = no_progress
) -> tuple[EvidenceModel | str, Calibration | None]:
    """Fit on searches for edits of some of the collection's videos, and for these videos
    themselves, whose neighbours show what looks alike in this collection. Returns the evidence, or
    why there is none if there are too few videos, and the calibration of similarities, for pairs of
    files.

    shard_of: by video id
    """
    if not shard_of:
        return "no video of the training split has features", None
    engine = memory_engine(project, bundle, videos_of(project, dict.fromkeys(shard_of.values())))
    ids = sorted(engine.collection.shard_of)
    edited = [ids[place] for place in numpy_rng(0, "edits").permutation(len(ids))[:EDITED_VIDEOS]]
    searches: list[Searched] = []
    near: dict[str, frozenset[str]] = {}
    for number, video_id in enumerate(edited):
        progress(number, 2 * len(edited))
        views = candidates_of(engine, engine.collection.whole(video_id))
        near[video_id] = _possible_copies(views) | {video_id}
        searches += known(views, matches=frozenset(), hidden=near[video_id], group=video_id)

    for number, video_id in enumerate(edited):
        progress(len(edited) + number, 2 * len(edited))
        searches += _searches_for_edits(project, engine, video_id, edited[number - 1], near)

    source = {
        "benchmark": "edits of the collection's own frames",
        "videos": engine.num_videos,
        "edited": len(edited),
    }
    pairs = [(first, second) for first in edited for second in ids if second not in near[first]]
    calibration = _fitted_similarities(engine, searches, pairs, source)
    return fit(searches, num_videos=engine.num_videos, source=source), calibration


def _possible_copies(views: Sequence[Sequence[ScoredCandidate]]) -> frozenset[str]:
    """The candidates, by any view, that may be copies of the query."""
    return frozenset(
        candidate.video_id
        for view in views
        for candidate in view
        if candidate.similarity >= COPY_SIMILARITY or candidate.frame_run >= COPY_FRAME_RUN
    )


def _searches_for_edits(
    project: Project,
    engine: SearchEngine,
    video_id: str,
    donor_id: str,
    near: Mapping[str, frozenset[str]],
) -> Iterator[Searched]:
    """Searches for edits of a video, with and without their match.

    donor_id: another video, which some edits show, too
    near: for each video those that may be copies of it, and itself
    """
    drawn = numpy_rng(0, "kinds", video_id).permutation(sorted(ALL_EDITS))[:2]
    kinds = dict.fromkeys([INNER_EDIT, *drawn.tolist()])
    for clip, shows_donor in edited_parts(project, engine, video_id, donor_id, kinds):
        hidden = near[video_id] | near[donor_id] if shows_donor else near[video_id]
        yield from known(
            candidates_of(engine, clip),
            matches=frozenset({video_id}),
            hidden=hidden - {video_id},
            group=video_id,
        )


def _fitted_similarities(
    engine: SearchEngine,
    searches: Sequence[Searched],
    pairs: Sequence[tuple[str, str]],
    source: Mapping[str, Any],
) -> Calibration | None:
    """The calibration from the similarity of two files to the probability of a match; None if there
    are too few searches.

    pairs: ids of different videos
    """
    matches, others = _frame_runs(searches)
    if min(len(matches), len(others)) < MIN_PAIRS:
        return None

    def similarities(place: int) -> Floats:
        query_id, reference_id = pairs[place]
        query = _thinned(engine, query_id)
        return engine.scorer.relative_similarity(query, _thinned(engine, reference_id))

    threshold = frame_threshold(len(pairs), similarities)
    return fit_calibration(matches, others, source=source, frame_threshold=threshold)


def _thinned(engine: SearchEngine, video_id: str) -> EmbeddedVideo:
    """A video with at most PAIR_FRAMES frames."""
    return engine.scorer.embed(thin(engine.collection.whole(video_id), PAIR_FRAMES))


def _frame_runs(searches: Sequence[Searched]) -> tuple[Floats, Floats]:
    """`frame_run` of all matches, and of the other candidates of each search that are most similar,
    by the whole pictures of the queries."""
    matches = [np.zeros(0)]
    others = [np.zeros(0)]
    for features, is_match, _ in searches:
        runs = features[0, :, evidence_kinds.names().index(FRAME_RUN.name)]
        is_found = np.isfinite(runs)
        matches.append(runs[is_match & is_found])
        others.append(np.sort(runs[~is_match & is_found])[-NEAREST_OTHERS:])

    return np.concatenate(matches), np.concatenate(others)


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
    for name in (video_id, donor_id):
        jpegs = open_frames(project, engine.collection.shard_of[name]).read(name).jpegs
        first = int(numpy_rng(0, "part", name).integers(max(len(jpegs) - EDITED_FRAMES, 0) + 1))
        parts.append(decode_jpegs(jpegs[first : first + EDITED_FRAMES]).transpose(0, 2, 3, 1))

    frames, donor = parts
    for kind in kinds:
        edit = ALL_EDITS[kind]
        edited = edit.apply(
            frames, donor, engine.scorer.sampling.fps, numpy_rng(0, "edit", video_id, kind)
        )
        yield engine.scorer.sampled(list(map(encode_jpeg, edited))), edit.combines


def frame_threshold(count: int, similarities: Callable[[int], Floats]) -> float:
    """The similarity that most pairs of different videos do not reach with their most similar
    consecutive frames. A single frame would not do, since unrelated videos share black frames and
    titles. Only the lower half of the pairs is used, since in a collection some are copies that
    nobody has marked.

    count: of pairs
    similarities: relative ones [T, T'] of the frames of a pair, by its number
    """
    chosen = numpy_rng(0, "frame threshold").permutation(count)[:FRAME_PAIRS].tolist()
    runs = [best_run(similarities(place)) for place in chosen]
    low, middle = np.quantile(runs, (0.05, 0.5))
    return min(float(middle + FRAME_SPREAD * (middle - low)), MAX_FRAME_THRESHOLD)


def videos_of(
    project: Project, keys: Iterable[str], *, first: Iterable[str] = ()
) -> dict[str, str]:
    """Video id -> shard, of videos of these shards that have features: `first` ones, then others,
    up to MAX_VIDEOS and MAX_FRAMES."""
    shard_of: dict[str, str] = {}
    num_frames: dict[str, int] = {}
    for key in keys:
        for row in project.shard(FEATURES_STAGE, key).rows():
            if row["status"] == STATUS_OK:
                shard_of[row["video_id"]] = key
                num_frames[row["video_id"]] = row["num_rows"]

    ids = [name for name in dict.fromkeys([*first, *shard_of]) if name in shard_of][:MAX_VIDEOS]
    total = np.cumsum([num_frames[name] for name in ids])
    in_memory = int(np.searchsorted(total, MAX_FRAMES, side="right"))
    return {name: shard_of[name] for name in ids[:in_memory]}


def memory_engine(project: Project, bundle: Path, shard_of: Mapping[str, str]) -> SearchEngine:
    """A search of some videos, in memory, with the model of a bundle, just as it will search later.

    shard_of: by id, of one video or more
    """
    opened = OpenBundle.open(bundle)
    scorer = opened.load(device=project.config.device)
    networks: Any = scorer.networks  # of either kind
    collection = SearchableCollection(
        project.root, shard_of, require=opened.require_features, extras=networks.needs_extras
    )
    blank = np.zeros((0, 0), np.float32)
    shard = project.shard(FEATURES_STAGE, next(iter(shard_of.values())))
    if IMPORTED not in shard.require({}).settings:
        blank = _blank_descriptors(networks, opened.description.crop_px)
    return SearchEngine(
        scorer=scorer,
        index=FramesInMemory(_described(scorer, collection, blank)),
        collection=collection,
        num_videos=len(collection.shard_of),
        blank=blank,
        candidates=project.config.search.candidates,
    )


def _blank_descriptors(networks: Any, crop_px: int) -> NDArray[np.float32]:
    """[B, D], descriptors of pictures of one colour."""
    pictures = blank_pictures(crop_px)
    starts = range(0, len(pictures), BATCH_FRAMES)
    regions = [networks.regions(pictures[start : start + BATCH_FRAMES]) for start in starts]
    return mean_directions(networks.vectors(networks.embed(np.concatenate(regions))))


def _described(
    scorer: VideoScorer, collection: SearchableCollection, blank: NDArray[np.float32]
) -> pa.Table:
    """What an index stores of all frames of these videos."""
    names: list[str] = []
    columns: list[tuple[Any, ...]] = []
    for video_id in collection.shard_of:
        video = collection.whole(video_id)
        vectors = scorer.networks.vectors(scorer.embed(video).regions)
        described = frame_descriptors(vectors, blank=blank)
        stored = described.vectors.astype(np.float16)
        names += [video_id] * len(video.hashes)
        columns.append((video.clock.times_s, video.hashes, stored, described.kept))

    times, hashes, stored, kept = map(np.concatenate, zip(*columns, strict=True))
    frames = pa.table({"video_id": names, "timestamp_s": times, "hash": hashes})
    return index_rows(frames, stored, kept)


def candidates_of(engine: SearchEngine, video: SampledFeatures) -> list[list[ScoredCandidate]]:
    """The candidates that each view of a video finds; none for a view that shows nothing."""
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
    """A search with its matches, and the same search without them, as if the query had none.

    views: candidates of each
    hidden: ids to leave out, since it is not known whether they match
    """
    shown = [
        [candidate for candidate in view if candidate.video_id not in hidden] for view in views
    ]
    names = list(dict.fromkeys(candidate.video_id for view in shown for candidate in view))
    if not names:
        return
    features = np.full((len(shown), len(names), len(evidence_kinds.KINDS)), np.nan)
    for number, view in enumerate(shown):
        places = [names.index(candidate.video_id) for candidate in view]
        measures = [candidate.evidence for candidate in view]
        features[number, places] = evidence_kinds.table_of(measures)

    is_match = np.array([name in matches for name in names], bool)
    if matches:
        yield features, is_match, group
    yield features[:, ~is_match], is_match[~is_match], group


def fit(
    searches: Sequence[Searched], *, num_videos: int, source: Mapping[str, Any]
) -> EvidenceModel | str:
    """The model of evidence, or why there is none if there are too few searches."""
    try:
        return fit_evidence(
            [(features, is_match) for features, is_match, _ in searches],
            [group for *_, group in searches],
            num_videos=num_videos,
            source=source,
        )
    except ArgumentError as error:
        return str(error)
