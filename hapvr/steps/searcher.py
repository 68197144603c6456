"""Search in the collection of a project: files, URLs, ids and pictures as queries."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hapvr.errors import ArgumentError, DamagedError, DataError
from hapvr.scorer import DEFAULT_PRECISION
from hapvr.scorer.access import Access, Deadline
from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.scorer import NEVER
from hapvr.scorer.segments import Segment
from hapvr.search.blank_file import read_blank
from hapvr.search.collection import SearchableCollection, VideoMetadata
from hapvr.search.confidence import ASKED_SHARE, Confidence, usual_prior
from hapvr.search.current import CurrentIndex, current_index
from hapvr.search.engine import SearchEngine
from hapvr.search.frame_matrix import frame_matrix
from hapvr.search.marks import Mark, read_marks
from hapvr.search.match import (
    Match,
    Query,
    SearchAnswer,
    coverage,
    cut,
    verdict_of,
)
from hapvr.search.options import SearchOptions
from hapvr.search.question import Question, note_of_lost, notes_of, seconds_of
from hapvr.search.scored import ScoredCandidate
from hapvr.settings import ServingConfig
from hapvr.steps.project import Project
from hapvr.steps.query_files import read_query
from hapvr.steps.search_fingerprint import search_fingerprint
from hapvr.steps.search_model import REGISTERED, index_bundle, registry_warnings
from hapvr.steps.video_vectors import first_stage_index
from hapvr.video.sources import is_inside

__all__ = ["UNSURE", "SearchOptions", "Searcher"]

UNSURE = "unsure: the model was fitted on no searches, so it does not say how sure it is"


@dataclass(kw_only=True, eq=False)
class Searcher(SearchEngine):
    """Searches the index of one project with the model that made the index. Threads may share
    it."""

    project: Project
    current: CurrentIndex
    """the index"""
    indexed: Mapping[str, str]
    """shard -> digest of what the index holds of it"""
    follows_registry: bool
    """whether the model is the version that the index names"""
    prior: float = ASKED_SHARE
    """the share of matches among candidates that answers assume, see `usual_prior`"""
    model: str = ""
    """`models:/NAME/VERSION` or a bundle"""
    untrained: bool = False
    """whether the model is the baseline"""
    damage: list[str] = field(default_factory=list)
    """what is wrong with the checked files of the index; if anything, there are no answers"""
    warnings: tuple[str, ...] = ()
    """the warnings about the model in every answer"""

    @staticmethod
    def open(
        config: str | Path | Project,
        *,
        overrides: Mapping[str, Any] | None = None,
        model: str | None = None,
    ) -> Searcher:
        """The searcher of a configuration file, or of a project that is open.

        model: a bundle folder or a name in the registry, if the model that the index names is not
        at hand; it must have the same network

        Raises: DataError if there is no index yet, if it is damaged, or if model, index and
        features do not belong together; MissingPartError if the model needs torch and torch is not
        installed.
        """
        project = config
        if not isinstance(project, Project):
            project = Project.open(Path(project), overrides=overrides)
        root = project.root
        current = current_index(root)
        uri, bundle = index_bundle(project, current, model)
        scorer = bundle.load(device=project.config.device)
        index = current.open(root, project.config.search)
        index.frames()
        shard_of = index.videos()
        collection = SearchableCollection(
            root,
            shard_of,
            require=bundle.require_features,
            extras=scorer.networks.needs_extras,
        )
        candidates = project.config.search.candidates
        searcher = Searcher(
            scorer=scorer,
            index=index,
            collection=collection,
            num_videos=len(shard_of),
            blank=scorer.use_blank(read_blank(root, current.digest)),
            candidates=candidates,
            evidence=bundle.evidence,
            video_index=first_stage_index(project, current, uri),
            project=project,
            current=current,
            indexed=index.shard_digests(),
            follows_registry=model is None and current.model.startswith(REGISTERED),
            model=uri,
            untrained=scorer.untrained,
        )
        searcher.look_again()
        return searcher

    @property
    def confidence(self) -> Confidence:
        """How sure answers are of their matches."""
        return Confidence(
            evidence=self.evidence,
            incidents=None if self.untrained else self.scorer.calibration,
            usual_prior=self.prior,
        )

    def look_again(self) -> None:
        """Bring `warnings` up to date with the registry and `prior` with the groups of copies: both
        may change while a searcher is open."""
        num_candidates = min(self.candidates, self.num_videos)
        self.prior = usual_prior(self.project.root, self.evidence, num_candidates)
        warnings = [self.scorer.warning] if self.scorer.warning else []
        if self.follows_registry:
            warnings += registry_warnings(self.project, self.current)
        self.warnings = tuple(warnings)

    def search(
        self,
        query: str | Path,
        options: SearchOptions | None = None,
        *,
        access: Access | None = None,
    ) -> SearchAnswer:
        """Videos that may show footage of a query: a video file, a still picture, or an http(s)
        URL. access: what may be read; default is all files and no hosts. Raises VideoError for a
        query that cannot be used, ArgumentError for a minimal probability where the model gives
        none."""
        return self.answer(self.read(query, access=access), options or SearchOptions())

    def search_id(self, video_id: str, options: SearchOptions | None = None) -> SearchAnswer:
        """Other videos that may show footage of a video of the collection. Raises DataError for an
        unknown id."""
        return self.answer(self.read_id(video_id), options or SearchOptions())

    def read(
        self,
        query: str | Path,
        *,
        name: str | None = None,
        access: Access | None = None,
        limits: ServingConfig | None = None,
        deadline: Deadline = NEVER,
    ) -> Query:
        """A file, a still picture or an http(s) URL as a query. name: what answers call it, default
        is `query` itself. limits: default is the model's. Raises VideoError."""
        return read_query(
            self.scorer, query, name=name, access=access, limits=limits, deadline=deadline
        )

    def read_id(self, video_id: str) -> Query:
        """A video of the collection as a query, which does not find itself. Raises DataError for an
        unknown id."""
        digest = self.collection.metadata.of(video_id).sha256
        features = self.collection.whole(video_id)
        return Query(name=video_id, features=features, sha256=digest, video_id=video_id)

    def answer(
        self,
        query: Query,
        options: SearchOptions,
        *,
        deadline: Deadline = NEVER,
        timed: Callable[[str], AbstractContextManager[object]] = lambda _: nullcontext(),
    ) -> SearchAnswer:
        """The matches of a query. Raises as `search` does, DamagedError where no candidate could be
        compared, and VideoError `timeout` where the deadline passes. timed: measures a block, by
        its name: `embed`, `find` and `segments`."""
        if self.damage:
            raise DamagedError(self.damage[0])
        confidence = self.confidence
        if options.min_probability > 0 and not confidence.is_given(options):
            raise ArgumentError(f"min_probability: {UNSURE}")
        with timed("embed"):
            views = self.views_of(query, options, deadline)
        with timed("find"):
            candidates, lost = self.find(
                views, allowed=self.allowed(query, options), deadline=deadline
            )

        if lost and not candidates:  # that nothing was found would be false
            raise DamagedError(f"search: {note_of_lost(lost)}")
        if options.incidents:
            candidates = sorted(candidates, key=lambda candidate: -candidate.similarity)

        asked = Question(
            query=query,
            options=options,
            views=tuple(views),
            seconds=seconds_of(views[0], options, self.scorer.sampling),
            confidence=confidence,
        )
        with timed("segments"):
            matches = self._matches(asked, candidates, deadline)
        notes = notes_of(
            asked,
            matches,
            lost,
            self.collection,
            untrained=self.untrained,
            by_videos=self.video_index is not None,
        )
        return SearchAnswer(
            query=query.name,
            query_id=query.video_id,
            matches=matches,
            seconds=asked.seconds,
            incidents=options.incidents,
            prior=confidence.prior(options),
            prior_of=confidence.prior_of(options),
            compared=len(candidates),
            videos=self.num_videos,
            warnings=(*self.warnings, *query.warnings, *notes),
            model=self.model,
            untrained=self.untrained,
            precision=DEFAULT_PRECISION if confidence.is_given(options) else None,
        )

    def _matches(
        self, asked: Question, candidates: Sequence[ScoredCandidate], deadline: Deadline
    ) -> tuple[Match, ...]:
        """The candidates to show: those that people marked as a match, and as many of the others,
        in order, as are asked for."""
        marks = read_marks(self.project.root)
        matches: list[Match] = []
        for candidate in candidates:
            file = self.collection.metadata.of(candidate.video_id)
            mark = marks.of(asked.query.sha256, file.sha256)
            same_file = file.sha256 == asked.query.sha256
            probability = asked.confidence.of_candidate(
                candidate, asked.options, same_file=same_file
            )
            if mark is None:
                is_likely = (probability or 0.0) >= asked.options.min_probability
                is_shown = is_likely and len(matches) < asked.options.top
            else:
                is_shown = mark.verdict == "match"

            if not is_shown:
                continue
            match = self._match(asked, candidate, file, mark, probability, deadline)
            matches.append(replace(match, rank=len(matches) + 1))

        return tuple(matches)

    def _match(
        self,
        asked: Question,
        candidate: ScoredCandidate,
        file: VideoMetadata,
        mark: Mark | None,
        probability: float | None,
        deadline: Deadline,
    ) -> Match:
        """A candidate in the form of an answer, still without its rank."""
        segments: tuple[Segment, ...] = ()
        covered: tuple[float | None, float | None] = (None, None)
        if asked.options.segments:
            segments = self.parts.segments(asked.views[candidate.view], candidate, deadline)
            covered = coverage(segments, query_s=asked.seconds, reference_s=candidate.seconds)

        same_file = file.sha256 == asked.query.sha256
        verdict = mark.verdict if mark is not None else ""
        return Match(
            query=asked.query.name,
            reference=candidate.video_id,
            rank=0,
            similarity=candidate.similarity,
            probability=probability,
            segments=segments,
            query_covered=covered[0],
            reference_covered=covered[1],
            mark=verdict,
            marked_by=mark.by if mark is not None else "",
            marked_since=mark.since if mark is not None else "",
            verdict=verdict_of(probability, mark=verdict, same_file=same_file),
            same_file=same_file,
            inner_picture=candidate.view > 0,
            offline=file.path is not None and not os.path.exists(file.path),
        )

    def views_of(
        self, query: Query, options: SearchOptions, deadline: Deadline = NEVER
    ) -> list[EmbeddedVideo]:
        """`VideoScorer.views` of the part of a query that is asked about. Raises VideoError if it
        has no frame."""
        part = query.features
        if options.part is not None:
            part = cut(part, options.part, name=query.name, fps=self.scorer.sampling.fps)
        return self.scorer.views(part, deadline)

    def allowed(self, query: Query, options: SearchOptions) -> Callable[[str], bool] | None:
        """Which videos may be found, never the query itself; None: all."""
        if not options.folder and not query.video_id:
            return None
        return lambda video_id: is_inside(video_id, options.folder) and video_id != query.video_id

    def matrix(
        self, query: Query, video_id: str, *, max_cells: int, deadline: Deadline = NEVER
    ) -> dict[str, Any]:
        """`frame_matrix` of a query and a video of the collection. Raises DataError for an unknown
        id."""
        return frame_matrix(
            self.scorer,
            query.features,
            self.collection.whole(video_id),
            max_cells=max_cells,
            deadline=deadline,
        )

    def fingerprint(self, stage: str, key: str, **asked: object) -> str:
        """`search_fingerprint` of a shard.

        Raises: DataError for a shard that is not in the index, and for a model that was fitted on
        no searches, since it cannot tell what a match is.
        """
        if self.evidence is None:
            raise DataError(
                f"search: {UNSURE}; register one with a validation benchmark of five queries "
                "or more"
            )
        if key not in self.indexed:
            raise DataError(
                f"search: shard {key} is not in the index; run `hapvr index update` first"
            )

        contents = self.collection.metadata.contents(key)
        return search_fingerprint(
            stage, self.project, self.current, key, self.indexed[key], contents, **asked
        )
