"""Answers at a stable address: they outlive the service for some days, see
`retention.answer_days`."""

import logging
import threading
import time
from collections.abc import Callable

from hapvr.errors import DataError
from hapvr.search.kept_answers import (
    KeptAnswer,
    is_old,
    keep_answer,
    nearest_pictures,
    read_answer,
    remove_answer,
    remove_old_answers,
    seconds_to_keep,
)
from hapvr.search.kept_frames import frames_to_keep
from hapvr.search.match import Query, SearchAnswer
from hapvr.serving.collection import OpenIndex, picture_at
from hapvr.serving.jobs import Job
from hapvr.serving.refusals import Refusal
from hapvr.steps.project import Project

CLEAN_EVERY_S = 3600.0

_LOG = logging.getLogger(__name__)


class KeptAnswers:
    """What one service keeps of its searches. Any thread may ask."""

    def __init__(self, project: Project) -> None:
        """Remove what was kept for long enough while no service ran."""
        self._root = project.root
        self._days = project.config.retention.answer_days
        self._guard = threading.Lock()
        self._cleaned_s = -float("inf")
        self._clean()

    def keep(
        self,
        job: Job,
        answer: SearchAnswer,
        *,
        network: str,
        is_current: Callable[[], bool],
    ) -> None:
        """Keep the answer of a search, with pictures and features of its query. Where the data root
        cannot be written, it stays until the service ends, as without this.

        network: digest of the network that made the features
        is_current: whether the index that gave the answer is still the one that counts. The answer
            of another is not kept, as it may name a video that was forgotten meanwhile.
        """
        self._clean()
        if not self._days or job.query is None or not self._root.is_writable():
            return
        try:
            kept = KeptAnswer(
                job=job.id,
                name=job.name,
                since=job.since,
                sha256=job.query.sha256,
                answer=answer,
                pictures=_pictures(job.query, answer),
                frames=None if job.query.video_id else frames_to_keep(job.query.features, network),
            )
            keep_answer(self._root, kept)
            # After it was written: `forget` removes what it finds once the index has changed.
            if not is_current():
                remove_answer(self._root, job.id)
        except (DataError, OSError) as error:
            _LOG.warning("the answer of a search is not kept: %s", error)

    def read(self, job_id: str) -> KeptAnswer | None:
        """An answer; None where it is not kept, or not any more."""
        self._clean()
        try:
            kept = read_answer(self._root, job_id)
            if kept is None or is_old(self._root, job_id, days=self._days):
                return None
            return kept
        except DataError as error:
            _LOG.warning("a kept answer cannot be read: %s", error)
            return None

    def query(self, job_id: str, index: OpenIndex) -> Query:
        """What a search was for whose answer is kept, with as many frames as were kept.

        Raises Refusal `gone` where they cannot be compared with this index, and `unknown_job`."""
        kept = self.read(job_id)
        if kept is None:
            raise Refusal(404, "unknown_job", "jobs: this search is not kept any more")
        if kept.answer.query_id:
            return index.read_id(kept.answer.query_id)
        if kept.frames is None or kept.frames.network != index.searcher.current.digest:
            sentence = "jobs: another model answers by now; search once more to look closer"
            raise Refusal(410, "gone", sentence)

        return Query(name=kept.name, features=kept.frames.features(), sha256=kept.sha256)

    def _clean(self) -> None:
        """Remove what was kept for long enough, now and then."""
        with self._guard:
            if time.monotonic() - self._cleaned_s < CLEAN_EVERY_S:
                return
            self._cleaned_s = time.monotonic()

        if not self._root.is_writable():
            return
        try:
            remove_old_answers(self._root, days=self._days)
        except (DataError, OSError) as error:
            _LOG.warning("old answers cannot be removed: %s", error)


def _pictures(query: Query, answer: SearchAnswer) -> dict[float, bytes]:
    """Of a file that was sent or named: a picture that shows something, and those of common
    parts."""
    jpegs = query.features.jpegs
    if not jpegs:
        return {}
    times_s = query.features.clock.times_s
    first = picture_at(jpegs, times_s, None)
    pictures = {times_s[jpegs.index(first)]: first}
    return pictures | nearest_pictures(jpegs, times_s, seconds_to_keep(answer))
