"""Searches in threads of their own: a few at once, a bounded number that waits, and their answers for a while."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from hapvr.scorer.deadline import Deadline
from hapvr.search.match import Query, SearchAnswer
from hapvr.serving.refusals import Refusal

SEARCH_TIMEOUT_S = 300.0
"""Limit for one search, not counting its time in the queue."""

MAX_WAITING = 32
"""Searches that wait, uploads that are being received included; more are refused."""

RETRY_S = 5
KEPT_JOBS = 64
KEPT_BYTES = 512 * 2**20
"""Memory for the features of queries, which matrices of pairs are made from."""


@dataclass(eq=False)
class Job:
    """One search. query: once it was read; it is dropped first where memory is short. video_id: of a query that is in the
    collection. sha256: of the query's file, "" where there is none or it is not read yet."""

    name: str
    video_id: str = ""
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    future: Future[SearchAnswer] = field(default_factory=Future)
    deadline: Deadline = field(default_factory=lambda: Deadline(None))
    query: Query | None = None
    sha256: str = ""

    @property
    def status(self) -> Literal["waiting", "running", "done", "failed"]:
        if not self.future.done():
            return "running" if self.future.running() else "waiting"
        return "done" if self.error is None else "failed"

    @property
    def error(self) -> BaseException | None:
        """Why a job that has ended has no answer."""
        return self.deadline.error() if self.future.cancelled() else self.future.exception()


class SearchJobs:
    """Runs searches. Any thread may ask."""

    def __init__(self, *, at_once: int) -> None:
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="search")
        self._num_places = at_once + MAX_WAITING
        self._guard = threading.Lock()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self.busy = 0
        """Searches that run or wait, and uploads that are being received."""

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place among those that run and wait. Raises Refusal `busy` where all are taken."""
        with self._guard:
            if self.busy >= self._num_places:
                sentence = f"search: {self.busy} searches run or wait, and no more are taken; try again in {RETRY_S} s"
                raise Refusal(503, "busy", sentence, {"retry-after": str(RETRY_S)})
            self.busy += 1
        try:
            yield
        finally:
            with self._guard:
                self.busy -= 1

    def start(self, job: Job, work: Callable[[Job], SearchAnswer], *, release: Callable[[], object]) -> None:
        """Run a search when its turn comes. release: called once, at its end."""

        def run() -> SearchAnswer:
            with self._guard:
                canceled, job.deadline = job.deadline.passed(), Deadline(SEARCH_TIMEOUT_S)
            if canceled:  # at the moment of its turn
                job.deadline.cancel()
            answer = work(job)
            job.sha256 = "" if job.query is None else job.query.sha256
            return answer

        with self._guard:
            self._jobs[job.id] = job
            self._forget()
        job.future = self._pool.submit(run)
        job.future.add_done_callback(lambda _: release())

    def get(self, job_id: str) -> Job:
        """Raises Refusal `unknown_job` for one that is not kept any more."""
        with self._guard:
            if job_id not in self._jobs:
                raise Refusal(404, "unknown_job", f"jobs: there is no search {job_id!r:.100} any more; search again")
            return self._jobs[job_id]

    def cancel(self, job: Job) -> None:
        """End a search that waits or runs; one that has ended stays as it is."""
        if not job.future.done():
            with self._guard:
                job.deadline.cancel()
            job.future.cancel()

    def close(self) -> None:
        """End all searches and wait for those that run."""
        with self._guard:
            jobs = list(self._jobs.values())
        for job in jobs:
            self.cancel(job)
        self._pool.shutdown(wait=True)

    def _forget(self) -> None:
        """Keep the last KEPT_JOBS that have ended, and features of the last queries, KEPT_BYTES of them."""
        ended = [job for job in self._jobs.values() if job.future.done()]
        for job in ended[:-KEPT_JOBS]:
            del self._jobs[job.id]
        room = KEPT_BYTES
        for job in reversed(self._jobs.values()):
            if job.query is not None:
                room -= job.query.features.regions.nbytes
                if room < 0:
                    job.query = None
