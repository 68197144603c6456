"""Search in the collection of a project: files, URLs, ids and pictures as queries."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.filesystem import DataRoot
from hapvr.errors import ArgumentError, DamagedError, DataError, VideoError
from hapvr.files import digest_of, file_sha256
from hapvr.provenance import Provenance
from hapvr.registry.client import pinned_uri
from hapvr.scorer import DEFAULT_PRECISION
from hapvr.scorer.access import Access, Deadline
from hapvr.scorer.bundle import is_untrained, load_bundle, read_description, read_evidence
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.evidence import EvidenceModel
from hapvr.scorer.scorer import NEVER
from hapvr.scorer.segments import Segment
from hapvr.search import DEFAULT_TOP
from hapvr.search.collection import (
    CurrentIndex,
    SearchableCollection,
    VideoMetadata,
    current_index,
    read_blank,
)
from hapvr.search.duplicates import GROUP_SCHEMA, GROUPS_PLACE, read_rows, stamp
from hapvr.search.engine import FORMAT as SCORES_FORMAT, Lost, ScoredCandidate, SearchEngine
from hapvr.search.marks import Mark, read_marks
from hapvr.search.match import (
    Match,
    Part,
    Query,
    SearchAnswer,
    coverage,
    cut,
    printable,
    thin,
    verdict_of,
)
from hapvr.settings import ServingConfig
from hapvr.steps.project import Project
from hapvr.steps.search_model import index_bundle, registry_warnings
from hapvr.video.sources import is_inside

ASKED_SHARE = 0.5
"""Share of queries that have a copy in the collection, as among the fitted searches: nobody can
know it beforehand."""
UNTRAINED_INCIDENTS = (
    "nothing was trained on this collection, so other footage of an incident is ranked by the "
    "similarity of its frames alone, without saying how sure that is"
)
UNSURE = "unsure: the model was fitted on no searches, so it does not say how sure it is"


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What a search is to give. Raises ArgumentError for values out of range.

    top: matches at most, >= 1, and those that people marked. part: of the query; None: all of it.
    min_probability: in [0, 1], 0 for all; the model needs evidence for it. prior: share of matches
    that probabilities are stated for, in (0, 1), None: the collection's, see `Searcher`. segments:
    whether to say which parts match. folder: the beginning of ids that may be found, as
    "source/holidays". incidents: rank by the similarity of the trained network, which also finds
    other footage of an incident, instead of by the evidence of a copy.
    """

    top: int = DEFAULT_TOP
    part: Part | None = None
    min_probability: float = 0.0
    prior: float | None = None
    segments: bool = True
    folder: str = ""
    incidents: bool = False

    def __post_init__(self) -> None:
        if (
            self.top < 1
            or not 0 <= self.min_probability <= 1
            or not (self.prior is None or 0 < self.prior < 1)
        ):
            raise ArgumentError(
                f"search: top is {self.top}, wanted 1 or more; min_probability is "
                f"{self.min_probability}, wanted a number in "
                f"[0, 1]; prior is {self.prior}, wanted the share of matches, above 0 and below 1"
            )


@dataclass(kw_only=True, eq=False)
class Searcher(SearchEngine):
    """Searches the index of one project with the model that the index was made with. Any thread may
    call it. current: the index, and indexed: shard -> digest of what it holds of it.
    follows_registry: whether the model is the version that the index names. prior: the share of
    matches among candidates that answers are stated for, if ASKED_SHARE of the queries show
    something of the collection, and find as many copies of it as its videos have. model:
    `models:/NAME/VERSION` or a bundle. untrained: whether it is the baseline. damage: what is wrong
    with the files of the index that were checked; then nothing is answered. warnings: what every
    answer says of the model."""

    project: Project
    current: CurrentIndex
    indexed: Mapping[str, str]
    follows_registry: bool
    prior: float
    model: str = ""
    untrained: bool = False
    damage: list[str] = field(default_factory=list)
    warnings: tuple[str, ...] = ()

    @staticmethod
    def open(
        config: str | Path | Project,
        *,
        overrides: Mapping[str, Any] | None = None,
        model: str | None = None,
    ) -> Searcher:
        """The searcher of a configuration file, or of a project that is open. model: a bundle
        folder or a name in the registry, where the model that the index names is not at hand; it
        must have the same network. Raises DataError where there is no index yet, where it is
        damaged, and where model, index and features do not belong together, and MissingPartError
        where the model needs torch and torch is not installed."""
        project = config
        if not isinstance(project, Project):
            project = Project.open(Path(project), overrides=overrides)
        root = project.root
        settings = project.config.search
        current = current_index(root)
        named = model or current.model
        folder = index_bundle(project, current, model)
        scorer = load_bundle(folder, device=project.config.device)
        index = current.open(root, settings)
        index.frames()
        shard_of = index.videos()
        evidence = read_evidence(folder)
        require = partial(read_description(folder).require_features, folder)
        searcher = Searcher(
            scorer=scorer,
            index=index,
            collection=SearchableCollection(
                root, shard_of, require=require, extras=scorer.networks.needs_extras
            ),
            num_videos=len(shard_of),
            blank=scorer.use_blank(read_blank(root, current.digest)),
            candidates=settings.candidates,
            evidence=evidence,
            project=project,
            current=current,
            indexed=index.shard_digests(),
            prior=_usual_prior(root, evidence, min(settings.candidates, len(shard_of))),
            follows_registry=model is None and current.model.startswith("models:/"),
            model=pinned_uri(named, project.tracking_uri)
            if "@" in named and named.startswith("models:/")
            else named,
            untrained=is_untrained(folder),
        )
        searcher.look_at_registry()
        return searcher

    def look_at_registry(self) -> None:
        """Bring `warnings` up to date with the registry, whose versions come and go while a
        searcher is open."""
        said = registry_warnings(self.project, self.current) if self.follows_registry else ()
        self.warnings = (*([self.scorer.warning] if self.scorer.warning else ()), *said)

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
        place = str(query)
        with self.scorer.open_videos(
            [place], access=access, limits=limits, deadline=deadline, crops=True
        ) as videos:
            features = videos.get(place)
        try:
            digest = "" if "://" in place else file_sha256((access or Access()).local_path(place))
        except OSError as error:
            raise VideoError(
                "missing_file", f"video: {place} went away while it was read ({error.strerror})"
            ) from error
        return Query(name=name or printable(place), features=features, sha256=digest)

    def read_id(self, video_id: str) -> Query:
        """A video of the collection as a query, which does not find itself. Raises DataError for an
        unknown id."""
        digest = self.collection.metadata.of(video_id).sha256
        return Query(
            name=video_id,
            features=self.collection.whole(video_id),
            sha256=digest,
            video_id=video_id,
        )

    def answer(
        self,
        query: Query,
        options: SearchOptions,
        *,
        deadline: Deadline = NEVER,
        timed: Callable[[str], AbstractContextManager[object]] = lambda _: nullcontext(),
    ) -> SearchAnswer:
        """The matches of a query. Raises as `search` does, and VideoError `timeout` where the
        deadline passes. timed: measures a block, by its name: `embed`, `find` and `segments`."""
        if self.damage:
            raise DamagedError(self.damage[0])
        if options.min_probability > 0 and not self.gives_probabilities(options):
            raise ArgumentError(f"min_probability: {UNSURE}")
        with timed("embed"):
            views = self.views_of(query, options, deadline)
        with timed("find"):
            candidates, lost = self.find(
                views, allowed=self.allowed(query, options), deadline=deadline
            )
        if options.incidents:
            candidates = sorted(candidates, key=lambda candidate: -candidate.similarity)

        asked = Question(
            query=query,
            options=options,
            views=tuple(views),
            seconds=self._seconds_of(views[0], options),
            prior=options.prior or self.prior,
        )
        with timed("segments"):
            matches = self._matches(asked, candidates, deadline)
        return SearchAnswer(
            query=query.name,
            query_id=query.video_id,
            matches=matches,
            seconds=asked.seconds,
            incidents=options.incidents,
            prior=self._prior_of_probabilities(asked),
            prior_of="pairs" if options.incidents else self._prior_of_copies,
            compared=len(candidates),
            videos=self.num_videos,
            warnings=self._warnings(query, options, matches, lost),
            model=self.model,
            untrained=self.untrained,
            precision=DEFAULT_PRECISION if self.gives_probabilities(options) else None,
        )

    def gives_probabilities(self, options: SearchOptions) -> bool:
        """Whether answers to such a search say how sure they are."""
        if options.incidents:
            return self.incident_calibration is not None
        return self.evidence is not None

    @property
    def _prior_of_copies(self) -> Literal["pairs", "searches"]:
        return "pairs" if self.evidence is None else self.evidence.prior_of

    def _prior_of_probabilities(self, asked: Question) -> float | None:
        """The share of matches for which the probabilities of an answer hold; None: it has none."""
        if not self.gives_probabilities(asked.options):
            return None
        if not asked.options.incidents:
            return asked.prior
        assert self.incident_calibration is not None
        return asked.options.prior or self.incident_calibration.prior

    @property
    def incident_calibration(self) -> Calibration | None:
        """From the trained network's similarity to the probability that two videos show the same
        incident; None of an untrained model, whose similarity is ranked by alone."""
        return None if self.untrained else self.scorer.calibration

    def _seconds_of(self, query: EmbeddedVideo, options: SearchOptions) -> float:
        """How long the searched part of a query lasts."""
        sampling = self.scorer.sampling
        if options.part is None:
            return query.clock.length_s(sampling.fps, sampling.max_frames)
        first_s, last_s = query.clock.span_s(0, -1, sampling.fps)
        return last_s - first_s

    def _matches(
        self, asked: Question, candidates: Sequence[ScoredCandidate], deadline: Deadline
    ) -> tuple[Match, ...]:
        """The candidates that are shown: what people marked as a match, and of the others, in
        order, as many as are asked for."""
        marks = read_marks(self.project.root)
        matches: list[Match] = []
        for candidate in candidates:
            file = self.collection.metadata.of(candidate.video_id)
            mark = marks.of(asked.query.sha256, file.sha256)
            same_file = file.sha256 == asked.query.sha256
            probability = self._probability(candidate, asked, same_file=same_file)
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

    def _probability(
        self, candidate: ScoredCandidate, asked: Question, *, same_file: bool
    ) -> float | None:
        """Of a match; 1 for the same bytes, None from a model that gives none."""
        if not self.gives_probabilities(asked.options):
            return None
        if same_file:
            return 1.0
        if asked.options.incidents:
            calibration = self.incident_calibration
            assert calibration is not None
            return calibration.probability(candidate.similarity, prior=asked.options.prior)
        return self.probability(candidate, prior=asked.prior)

    def _match(
        self,
        asked: Question,
        candidate: ScoredCandidate,
        file: VideoMetadata,
        mark: Mark | None,
        probability: float | None,
        deadline: Deadline,
    ) -> Match:
        """A candidate as answers show it; its rank is not known yet."""
        segments: tuple[Segment, ...] = ()
        covered: tuple[float | None, float | None] = (None, None)
        if asked.options.segments:
            segments = self.segments(asked.views[candidate.view], candidate, deadline)
            covered = coverage(segments, query_s=asked.seconds, reference_s=candidate.seconds)
        same_file = file.sha256 == asked.query.sha256
        said = mark.verdict if mark is not None else ""
        return Match(
            query=asked.query.name,
            reference=candidate.video_id,
            rank=0,
            similarity=candidate.similarity,
            probability=probability,
            segments=segments,
            query_covered=covered[0],
            reference_covered=covered[1],
            mark=said,
            marked_by=mark.by if mark is not None else "",
            marked_since=mark.since if mark is not None else "",
            verdict=verdict_of(probability, mark=said, same_file=same_file),
            same_file=same_file,
            inner_picture=candidate.view > 0,
            offline=file.path is not None and not os.path.exists(file.path),
        )

    def _warnings(
        self, query: Query, options: SearchOptions, matches: Sequence[Match], lost: Lost
    ) -> tuple[str, ...]:
        """What speaks against believing an answer."""
        warnings = [*self.warnings, *query.warnings]
        for match in matches:
            note = self.collection.metadata.of(match.reference).clock_note
            if note:
                warnings.append(f"{match.reference}: {note}")
        if options.incidents and self.untrained:
            warnings.append(UNTRAINED_INCIDENTS)
        if lost:
            name, reason = min(lost.items())
            warnings.append(
                f"{len(lost)} videos of the index could not be compared, e.g. {name}: {reason}; "
                "`hapvr index update` forgets videos that are gone"
            )
        known = any(is_inside(video_id, options.folder) for video_id in self.collection.shard_of)
        if options.folder and not known:
            warnings.append(
                f"no video of the collection has the id {printable(options.folder)} or is in that "
                "folder"
            )
        return tuple(warnings)

    def views_of(
        self, query: Query, options: SearchOptions, deadline: Deadline = NEVER
    ) -> list[EmbeddedVideo]:
        """`VideoScorer.views` of the part of a query that is asked for. Raises VideoError where it
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
        """How similar the frames of a query and of a video of the collection are, by the view of
        the query that is closest. values: [T, T'] in [-1, 1], 1 for the same picture;
        query_times_s, reference_times_s: of the T and T' frames; threshold: from which on two
        frames count as the same in segments; segments: of the whole. max_cells: of the matrix; of
        longer videos it has frames that are evenly apart. Raises DataError for an unknown id."""
        reference = self.collection.whole(video_id)
        rows, columns = (len(video.regions) for video in (query.features, reference))
        if rows * columns > max_cells:
            shrink = (max_cells / (rows * columns)) ** 0.5
            rows = min(rows, max(int(rows * shrink), max_cells // columns, 1))
            columns = max(min(columns, max_cells // rows), 1)
        thinned = [thin(query.features, rows), thin(reference, columns)]
        second = self.scorer.embed(thinned[1], deadline)
        by_view = [
            self.scorer.relative_similarity(view, second, deadline)
            for view in self.scorer.views(thinned[0])
        ]
        values, first = max(by_view, key=lambda values: values.max(axis=1).mean()), thinned[0]
        return {
            "query_times_s": first.clock.times_s,
            "reference_times_s": second.clock.times_s,
            "values": values,
            "threshold": self.scorer.frame_threshold,
            "segments": self.scorer.segments_in(values, first.clock, second.clock),
        }

    def fingerprint(self, stage: str, key: str, **asked: object) -> str:
        """`search_fingerprint` of a shard. Raises DataError for one that is not in the index, and
        from a model that was fitted on no searches: nobody knows what is a match then."""
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """A query as it is answered. views: embeddings of its whole picture and of parts of it.
    seconds: how long the searched part lasts. prior: share of matches among candidates."""

    query: Query
    options: SearchOptions
    views: tuple[EmbeddedVideo, ...]
    seconds: float
    prior: float


def _usual_prior(root: DataRoot, evidence: EvidenceModel | None, num_candidates: int) -> float:
    """The prior that answers are stated for where nobody names one: ASKED_SHARE of the searches
    have a match, and find as many copies of it as the collection's videos have."""
    if evidence is not None and evidence.prior_of == "searches":
        return ASKED_SHARE
    groups = read_rows(root, GROUPS_PLACE, GROUP_SCHEMA, damaged=True)
    copies = float(stamp(groups, "copies") or 0)
    return min(ASKED_SHARE * (1 + copies) / max(num_candidates, 1), ASKED_SHARE)


def answer_or_error(query: str, search: Callable[[str], SearchAnswer]) -> SearchAnswer:
    """What a search for a query gives; one that cannot be used is an answer with an error."""
    try:
        return search(query)
    except (VideoError, DataError) as error:
        reason = f"{error.reason}: {error}" if isinstance(error, VideoError) else str(error)
        return SearchAnswer(query=printable(query), error=printable(reason))


def search_fingerprint(
    stage: str,
    project: Project,
    current: CurrentIndex,
    key: str,
    indexed: str,
    contents: Mapping[str, str],
    **asked: object,
) -> str:
    """Changes where searches in, or by the videos of, a shard may give something else: model,
    features, descriptors, files, settings and way of searches. indexed: digest of what the index
    holds of the shard. contents: see `CollectionMetadata`; the same that what is found is stored
    with. asked: what the step adds."""
    settings = project.config.search.model_dump(
        mode="json", exclude={"index", "min_duplicate_probability"}
    )
    inputs = {"features": project.shard(FEATURES_STAGE, key).digest(), "descriptors": indexed}
    model = {
        "network": current.digest,
        "model": current.model,
        "scores": SCORES_FORMAT,
        "files": digest_of(contents),
    }
    return Provenance(stage, {**model, **asked, **settings}, inputs).fingerprint
