"""What a search does once its turn has come: read the query, answer it, keep the answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hapvr.errors import DataError, VideoError
from hapvr.scorer.access import Access
from hapvr.search.match import Query, SearchAnswer
from hapvr.serving.collection import Collection, OpenIndex
from hapvr.serving.jobs import Job
from hapvr.serving.kept import KeptAnswers
from hapvr.serving.refusals import shown_model, without_paths
from hapvr.settings import ServingConfig

Timed = Callable[[str], AbstractContextManager[object]]
"""Measures a block as a part of a search."""


@dataclass(frozen=True, kw_only=True)
class QuerySource:
    """Where a query comes from; one of the three is given."""

    video_id: str = ""
    """Of a video of the collection."""
    place: str = ""
    """A path of this machine or a URL."""
    upload: Path | None = None
    """The file that was sent."""


@dataclass(frozen=True, kw_only=True)
class SearchWork:
    """Answers searches. Any thread may call it."""

    collection: Collection
    kept: KeptAnswers
    access: Access
    limits: ServingConfig

    def answer(
        self,
        source: QuerySource,
        job: Job,
        *,
        timed: Timed,
        on_read: Callable[[Query], None] = lambda _: None,
    ) -> SearchAnswer:
        """Read the query of a job and answer it; again where the index was replaced and removed
        meanwhile.

        timed: of the parts of the search
        on_read: is called with the query
        """
        index = self.collection.current()
        while True:
            try:
                with timed("read"):
                    job.query = self._read(source, index, job)
                on_read(job.query)
                answer = index.searcher.answer(
                    job.query, job.options, deadline=job.deadline, timed=timed
                )
            except DataError:
                newer = self.collection.current(look=True)
                if newer is index:
                    raise
                index = newer
                continue

            warnings = tuple(map(without_paths, answer.warnings))
            shown = replace(answer, warnings=warnings, model=shown_model(answer.model))
            is_current = partial(self.collection.is_current, index)
            network = index.searcher.current.digest
            self.kept.keep(job, shown, network=network, is_current=is_current)
            return shown

    def _read(self, source: QuerySource, index: OpenIndex, job: Job) -> Query:
        if source.video_id:
            return index.read_id(source.video_id)
        if source.upload is not None:
            return self._read_upload(source.upload, index, job)
        return index.searcher.read(
            source.place, access=self.access, limits=self.limits, deadline=job.deadline
        )

    def _read_upload(self, path: Path, index: OpenIndex, job: Job) -> Query:
        try:
            return index.searcher.read(
                path, name=job.name, limits=self.limits, deadline=job.deadline
            )
        except VideoError as error:
            # With the sender's name of the file instead of its temporary place.
            sentence = str(error).replace(str(path), job.name).replace(path.name, job.name)
            raise VideoError(error.reason, sentence) from error
