"""Search in the collection of a project: files, URLs, ids and pictures as queries."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.errors import ArgumentError, DamagedError, DataError, VideoError
from hapvr.files import digest_of, file_sha256
from hapvr.provenance import Provenance
from hapvr.registry.client import pinned_uri
from hapvr.scorer import DEFAULT_PRECISION
from hapvr.scorer.access import Access, Deadline
from hapvr.scorer.bundle import is_untrained, load_bundle, read_description, read_evidence
from hapvr.scorer.scorer import NEVER, EmbeddedVideo
from hapvr.search import DEFAULT_TOP
from hapvr.search.collection import CurrentIndex, SearchableCollection, current_index, read_blank
from hapvr.search.duplicates import GROUP_SCHEMA, GROUPS_PLACE, read_rows, stamp
from hapvr.search.engine import FORMAT as SCORES_FORMAT, SearchEngine
from hapvr.search.marks import read_marks
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

ASKED_SHARE = 0.5
"""Share of queries that have a copy in the collection, as among the fitted searches: nobody can
know it beforehand."""
UNSURE = "unsure: the model was fitted on no searches, so it does not say how sure it is"


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What a search is to give. Raises ArgumentError for values out of range.

    top: matches at most, >= 1, and those that people marked. part: of the query; None: all of it.
    min_probability: in [0, 1], 0 for all; the model needs evidence for it. prior: share of matches
    that probabilities are stated for, in (0, 1), None: the collection's, see `Searcher`. segments:
    whether to say which parts match. folder: the beginning of ids that may be found, as
    "source/holidays".
    """

    top: int = DEFAULT_TOP
    part: Part | None = None
    min_probability: float = 0.0
    prior: float | None = None
    segments: bool = True
    folder: str = ""

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
        project = (
            config
            if isinstance(config, Project)
            else Project.open(Path(config), overrides=overrides)
        )
        root, settings = project.root, project.config.search
        current = current_index(root)
        named = model or current.model
        folder = index_bundle(project, current, model)
        scorer = load_bundle(folder, device=project.config.device)
        index = current.open(root, settings)
        index.read_hashes()
        shard_of, groups = index.videos(), read_rows(root, GROUPS_PLACE, GROUP_SCHEMA, damaged=True)
        require, copies = (
            partial(read_description(folder).require_features, folder),
            stamp(groups, "copies"),
        )
        share = (
            ASKED_SHARE * (1 + float(copies or 0)) / max(min(settings.candidates, len(shard_of)), 1)
        )
        searcher = Searcher(
            scorer=scorer,
            index=index,
            collection=SearchableCollection(
                root, shard_of, require=require, extras=scorer.networks.needs_extras
            ),
            num_videos=len(shard_of),
            blank=read_blank(root, current.digest),
            candidates=settings.candidates,
            evidence=read_evidence(folder),
            project=project,
            current=current,
            indexed=index.shard_digests(),
            prior=min(share, ASKED_SHARE),
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
            [place], access=access, limits=limits, deadline=deadline, inner=True
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
        if options.min_probability > 0 and self.evidence is None:
            raise ArgumentError(f"min_probability: {UNSURE}")
        with timed("embed"):
            views = self.views_of(query, options, deadline)
        with timed("find"):
            candidates, lost = self.find(
                views, allowed=self.allowed(query, options), deadline=deadline
            )
        first_s, last_s = views[0].clock.span_s(0, -1, self.scorer.sampling.fps)
        seconds = last_s - first_s
        if options.part is None:
            seconds = views[0].clock.length_s(
                self.scorer.sampling.fps, self.scorer.sampling.max_frames
            )
        marks, prior, matches = (
            read_marks(self.project.root),
            options.prior or self.prior,
            list[Match](),
        )
        with timed("segments"):
            for one in candidates:
                file, probability = (
                    self.collection.metadata.of(one.video_id),
                    self.probability(one, prior=prior),
                )
                same_file, mark = file.sha256 == query.sha256, marks.of(query.sha256, file.sha256)
                if same_file and probability is not None:
                    probability = 1.0
                likely = (probability or 0.0) >= options.min_probability
                wanted = likely and len(matches) < options.top
                if not (
                    mark.verdict == "match" if mark else wanted
                ):  # what people said comes before the model
                    continue
                said, by, since = (mark.verdict, mark.by, mark.since) if mark else ("", "", "")
                segments = self.segments(views[one.view], one, deadline) if options.segments else ()
                spans = coverage(segments, query_s=seconds, reference_s=one.seconds)
                covered = spans if options.segments else (None, None)
                matches.append(
                    Match(
                        query=query.name,
                        reference=one.video_id,
                        rank=len(matches) + 1,
                        similarity=one.similarity,
                        probability=probability,
                        segments=segments,
                        query_covered=covered[0],
                        reference_covered=covered[1],
                        mark=said,
                        marked_by=by,
                        marked_since=since,
                        verdict=verdict_of(probability, mark=said, same_file=same_file),
                        same_file=same_file,
                        inner_picture=one.view > 0,
                        offline=file.path is not None and not os.path.exists(file.path),
                    )
                )
        warnings = (*self.warnings, *query.warnings)
        if lost:
            name, reason = min(lost.items())
            said = f"{len(lost)} videos of the index could not be compared, e.g. {name}: {reason}"
            warnings = (*warnings, f"{said}; `hapvr index update` forgets videos that are gone")
        if options.folder and not any(
            one.startswith(options.folder) for one in self.collection.shard_of
        ):
            warnings = (
                *warnings,
                f"no video of the collection has an id that begins with "
                f"{printable(options.folder)}",
            )
        return SearchAnswer(
            query=query.name,
            query_id=query.video_id,
            matches=tuple(matches),
            seconds=seconds,
            prior=None if self.evidence is None else prior,
            compared=len(candidates),
            videos=self.num_videos,
            warnings=warnings,
            model=self.model,
            untrained=self.untrained,
            precision=None if self.evidence is None else DEFAULT_PRECISION,
        )

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
        return lambda video_id: video_id.startswith(options.folder) and video_id != query.video_id

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
