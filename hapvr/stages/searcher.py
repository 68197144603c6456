"""Search in the collection of a project: files, URLs, ids and pictures as queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hapvr.errors import ArgumentError, DataError, VideoError
from hapvr.provenance import file_sha256
from hapvr.scorer.access import Access
from hapvr.scorer.bundle import load_bundle
from hapvr.scorer.deadline import Deadline
from hapvr.scorer.pictures import is_picture
from hapvr.scorer.scorer import NEVER, VideoScorer
from hapvr.scorer.settings import ServingConfig
from hapvr.scorer.similarity_model import bundle_features
from hapvr.search import DEFAULT_TOP
from hapvr.search.current import CurrentIndex, current_index
from hapvr.search.engine import Found, SearchEngine
from hapvr.search.facts import CollectionFacts
from hapvr.search.marks import read_marks
from hapvr.search.match import FrameMatrix, Match, SearchAnswer, coverage
from hapvr.search.query import Part, Query, cut, thin
from hapvr.search.shard_index import ShardIndex
from hapvr.search.shards import descriptor_shard, searchable
from hapvr.search.stored import StoredVideos
from hapvr.stages.project import Project
from hapvr.stages.search_model import index_bundle, registry_warnings
from hapvr.stages.search_page import search_page

STALE_SHOWN = 3
"""Lost candidates that a warning names."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a search is to give. Raises ArgumentError for values out of range.

    top: matches at most, >= 1. part: of the query; None: all of it. min_probability: in [0, 1], 0 for all; the model needs
    a calibration for it. prior: share of matches that probabilities are stated for, None: the calibration's. segments:
    whether to say which parts match. folder: the beginning of ids that may be found, such as "source/holidays".
    """

    top: int = DEFAULT_TOP
    part: Part | None = None
    min_probability: float = 0.0
    prior: float | None = None
    segments: bool = True
    folder: str = ""

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ArgumentError(f"top is {self.top}; wanted 1 or more")
        if not 0 <= self.min_probability <= 1:
            raise ArgumentError(f"min_probability is {self.min_probability}; wanted a number in [0, 1]")
        if self.prior is not None and not 0 < self.prior < 1:
            raise ArgumentError(f"prior is {self.prior}; wanted the share of matches, above 0 and below 1")


class Searcher:
    """Searches the index of one project with the model that the index was made with. Any thread may call it."""

    def __init__(
        self,
        project: Project,
        engine: SearchEngine,
        *,
        shards: Mapping[str, str],
        videos: StoredVideos,
        current: CurrentIndex,
        indexed: Mapping[str, str],
        warnings: tuple[str, ...],
        follows_registry: bool,
    ) -> None:
        """For `open`. shards: video id -> shard; current: the index, and indexed: shard -> digest of what it holds of it;
        warnings: of every answer; follows_registry: whether the model is the version that the index names."""
        self._project = project
        self.engine = engine
        self._shards = shards
        self._videos = videos
        self.current = current
        self.indexed = indexed
        self._warnings = warnings
        self._follows_registry = follows_registry
        self._registry_warnings: tuple[str, ...] = ()
        self.facts = CollectionFacts(project.root, shards)

    @staticmethod
    def open(
        config: str | Path | Project, *, overrides: Mapping[str, Any] | None = None, model: str | None = None
    ) -> Searcher:
        """The searcher of a configuration file, or of a project that is open.

        model: a bundle folder or a name in the registry, where the model that the index names is not at hand; it must have
        the same network. Raises DataError where there is no index yet, where it is damaged, and where model, index and
        features do not belong together, and MissingPartError where the model needs torch and torch is not installed.
        """
        project = config if isinstance(config, Project) else Project.open(Path(config), overrides=overrides)
        root, settings = project.root, project.config.search
        current = current_index(root)
        folder = index_bundle(project, current, model)
        scorer = load_bundle(folder, device=project.config.device, dtype=settings.dtype)
        index = current.open(root, settings)
        shards = index.videos()
        videos = StoredVideos(root, shards, require=bundle_features(folder).require, side=scorer.networks.needs_side)
        videos.check()
        engine = SearchEngine(
            scorer=scorer,
            index=index,
            videos=videos,
            num_videos=len(shards),
            blank=current.blank(root),
            settings=settings,
        )
        searcher = Searcher(
            project,
            engine,
            shards=shards,
            videos=videos,
            current=current,
            indexed={key: entry.digest for key, entry in index.status().shards.items()},
            warnings=(scorer.warning,) if scorer.warning else (),
            follows_registry=model is None and current.model.startswith("models:/"),
        )
        searcher.look_at_registry()
        return searcher

    def look_at_registry(self) -> None:
        """Bring `warnings` up to date with the registry, whose versions come and go while a searcher is open."""
        if self._follows_registry:
            self._registry_warnings = registry_warnings(self._project, self.current)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What every answer says of the model."""
        return (*self._warnings, *self._registry_warnings)

    @property
    def scorer(self) -> VideoScorer:
        return self.engine.scorer

    @property
    def num_videos(self) -> int:
        """Videos of the collection that can be found."""
        return self.engine.num_videos

    def search(self, query: str | Path, wanted: Wanted | None = None, *, access: Access | None = None) -> SearchAnswer:
        """Videos that may show footage of a query: a video file, a still picture, or an http(s) URL.

        access: what may be read; default is all files and no hosts. Raises VideoError for a query that cannot be used,
        ArgumentError for a minimal probability where the model has no calibration.
        """
        return self.answer(self.read(query, access=access), wanted or Wanted())

    def search_id(self, video_id: str, wanted: Wanted | None = None) -> SearchAnswer:
        """Other videos that may show footage of a video of the collection. Raises DataError for an unknown id."""
        return self.answer(self.read_id(video_id), wanted or Wanted())

    def read(
        self,
        query: str | Path,
        *,
        name: str | None = None,
        access: Access | None = None,
        limits: ServingConfig | None = None,
        deadline: Deadline = NEVER,
    ) -> Query:
        """A file, a still picture or an http(s) URL as a query.

        name: what answers call it, default is `query` itself. limits: default is the model's. Raises VideoError.
        """
        place, began = str(query), time.perf_counter()
        if "://" not in place and is_picture(place):
            features = self.scorer.picture(place, access=access, limits=limits, deadline=deadline)
        else:
            with self.scorer.open_videos([place], access=access, limits=limits, deadline=deadline) as videos:
                features = videos.get(place)
        digest = "" if "://" in place else file_sha256((access or Access()).local_path(place))
        read_s = time.perf_counter() - began
        return Query(name=name or place, features=features, sha256=digest, read_s=read_s)

    def read_id(self, video_id: str) -> Query:
        """A video of the collection as a query, which does not find itself. Raises DataError for an unknown id."""
        began = time.perf_counter()
        features = self._videos.whole(video_id)
        digest = self.facts.of(video_id).sha256
        read_s = time.perf_counter() - began
        return Query(name=video_id, features=features, sha256=digest, read_s=read_s, video_id=video_id)

    def matrix(self, query: Query, video_id: str, *, max_cells: int, deadline: Deadline = NEVER) -> FrameMatrix:
        """How similar the frames of a query and of a video of the collection are.

        max_cells: of the matrix; of longer videos it has frames that are evenly apart. Raises DataError for an unknown id.
        """
        reference = self._videos.whole(video_id)
        rows, columns = (len(video.regions) for video in (query.features, reference))
        if rows * columns > max_cells:
            shrink = (max_cells / (rows * columns)) ** 0.5
            rows = min(rows, max(int(rows * shrink), max_cells // columns, 1))
            columns = max(min(columns, max_cells // rows), 1)
        thinned = [thin(query.features, rows), thin(reference, columns)]
        first, second = (self.scorer.embed(video, deadline) for video in thinned)
        values = self.scorer.relative_similarity(first, second, deadline)
        return FrameMatrix(
            query_times_s=first.clock.times_s,
            reference_times_s=second.clock.times_s,
            values=values,
            threshold=self.scorer.frame_threshold,
            segments=self.scorer.segments_in(values, first.clock, second.clock),
        )

    def try_search(self, query: str | Path, wanted: Wanted, *, access: Access | None = None) -> SearchAnswer:
        """As `search`, but a query that cannot be used is an answer with an error."""
        return _or_error(str(query), lambda: self.search(query, wanted, access=access))

    def try_search_id(self, video_id: str, wanted: Wanted) -> SearchAnswer:
        """As `search_id`, but an id that cannot be used is an answer with an error."""
        return _or_error(video_id, lambda: self.search_id(video_id, wanted))

    def page(self, answers: Sequence[SearchAnswer]) -> str:
        """Answers as one HTML document with pictures."""
        return search_page(self._project, answers, shards=self._shards, facts=self.facts)

    def has(self, video_id: str) -> bool:
        """Whether the index has a video of this id."""
        return video_id in self._shards

    def shard_of(self, video_id: str) -> str:
        """The shard of a video that the index has."""
        return self._shards[video_id]

    def video_ids(self) -> list[str]:
        """All videos that can be found, sorted."""
        return sorted(self._shards)

    def shards(self) -> list[str]:
        """Shards that have a video in the index, sorted."""
        return sorted(set(self._shards.values()))

    def videos_of(self, key: str) -> list[str]:
        """Those of one shard, sorted."""
        return sorted(video_id for video_id, shard in self._shards.items() if shard == key)

    def seconds_of(self, video_id: str) -> float:
        """How long a video of the collection lasts, to one sampled frame. Raises DataError for an unknown id."""
        return self._videos.times(video_id)[-1] + 1 / self.scorer.sampling.fps

    def find_copies(self, video_id: str, *, least_probability: float) -> list[Found]:
        """Other videos that share footage with one of the collection, the most similar first, with segments.

        None for a video that shows nothing. Raises ArgumentError from a model without calibration.
        """
        calibration = self.scorer.calibration
        if calibration is None:
            raise ArgumentError("least_probability: this model has no calibration, so there are no probabilities")
        query = self.scorer.embed(self._videos.whole(video_id))
        try:
            result = self.engine.search(query, num_segmented=0, allowed=self._allowed("", video_id))
        except VideoError:
            return []
        return [
            replace(found, segments=self.engine.segments(query, found.score))
            for found in result.found
            if calibration.probability(found.score.similarity) >= least_probability
        ]

    def within(self, key: str) -> Searcher:
        """A searcher of one shard, which is compared exactly: no other shard's video takes a place among the nearest.

        Raises DataError and DamagedError where its descriptors cannot be read.
        """
        shard = descriptor_shard(self._project.root, self.current.digest, key)
        shards = dict.fromkeys(self.videos_of(key), key)
        return Searcher(
            self._project,
            replace(self.engine, index=ShardIndex(*searchable(shard)), num_videos=len(shards)),
            shards=shards,
            videos=self._videos,
            current=self.current,
            indexed=self.indexed,
            warnings=self.warnings,
            follows_registry=False,
        )

    def compare(self, video_id: str, other: str) -> Found:
        """Two videos of the collection, compared whole, with segments. Raises DataError where one has no features."""
        query = self.scorer.embed(self._videos.whole(video_id))
        score = self.engine.score(query, other)
        return Found(score=score, votes=0.0, segments=self.engine.segments(query, score))

    def answer(self, query: Query, wanted: Wanted, *, deadline: Deadline = NEVER) -> SearchAnswer:
        """The matches of a query. Raises as `search` does, and VideoError `timeout` where the deadline passes."""
        scorer, fps = self.scorer, self.scorer.sampling.fps
        name, digest, began = query.name, query.sha256, time.perf_counter()
        if wanted.min_probability > 0 and scorer.calibration is None:
            raise ArgumentError("min_probability: this model has no calibration, so there are no probabilities")
        part = query.features if wanted.part is None else cut(query.features, wanted.part, name=name, fps=fps)
        embedded = scorer.embed(part, deadline)
        embed_s = query.read_s + time.perf_counter() - began
        result = self.engine.search(
            embedded,
            num_segmented=wanted.top if wanted.segments else 0,
            allowed=self._allowed(wanted.folder, query.video_id),
            deadline=deadline,
        )
        marks = read_marks(self._project.root)
        calibration = scorer.calibration
        seconds = embedded.clock.times_s[-1] + 1 / fps - embedded.clock.times_s[0]
        matches: list[Match] = []
        for found in result.found:
            mark = marks.verdict(digest, self.facts.of(found.score.video_id).sha256) if len(marks) and digest else None
            match = self._match(name, found, wanted, seconds=seconds, rank=len(matches) + 1)
            unlikely = match.probability is not None and match.probability < wanted.min_probability
            if mark == "not_a_match" or (unlikely and mark is None):
                continue
            matches.append(match if mark is None else replace(match, mark="match"))
            if len(matches) == wanted.top:
                break
        return SearchAnswer(
            query=name,
            matches=tuple(matches),
            seconds=seconds,
            prior=None if calibration is None else (wanted.prior or calibration.prior),
            compared=len(result.found),
            videos=self.num_videos,
            warnings=(*self.warnings, *_lost_warning(result.lost)),
            timings_s={"query": embed_s, **result.timings_s},
        )

    def _match(self, name: str, found: Found, wanted: Wanted, *, seconds: float, rank: int) -> Match:
        calibration, score = self.scorer.calibration, found.score
        covered: tuple[float | None, float | None] = (None, None)
        if found.segments is not None:
            covered = coverage(found.segments, query_s=seconds, reference_s=score.seconds)
        return Match(
            query=name,
            reference=score.video_id,
            rank=rank,
            similarity=score.similarity,
            probability=None if calibration is None else calibration.probability(score.similarity, prior=wanted.prior),
            segments=found.segments or (),
            query_covered=covered[0],
            reference_covered=covered[1],
            votes=found.votes,
        )

    def _allowed(self, folder: str, itself: str) -> Callable[[str], bool] | None:
        if not folder and not itself:
            return None
        return lambda video_id: video_id.startswith(folder) and video_id != itself


def _lost_warning(lost: Mapping[str, str]) -> tuple[str, ...]:
    if not lost:
        return ()
    shown = ", ".join(sorted(lost)[:STALE_SHOWN])
    return (f"{len(lost)} videos of the index have no features any more ({shown}); `hapvr index update` forgets them",)


def _or_error(name: str, search: Callable[[], SearchAnswer]) -> SearchAnswer:
    try:
        return search()
    except VideoError as error:
        return SearchAnswer(query=name, timings_s={}, error=f"{error.reason}: {error}")
    except DataError as error:
        return SearchAnswer(query=name, timings_s={}, error=str(error))
