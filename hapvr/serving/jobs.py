"""Searches in threads of their own: a few at once, a bounded number that waits, and their answers for a while."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from hapvr.scorer.access import Deadline
from hapvr.search.match import Query, SearchAnswer
from hapvr.serving.refusals import Refusal

SEARCH_TIMEOUT_S = 300.0
"""Limit for one search, not counting its time in the queue."""

SEARCHES_AT_ONCE = 2
MAX_WAITING = 32
"""Searches that wait, uploads that are being received included; more are refused."""

RETRY_S = 5
KEPT_JOBS = 64
KEPT_BYTES = 512 * 2**20
"""Memory for the features of queries, which matrices of pairs are made from."""


@dataclass(eq=False)
class Job:
    """One search. query: once it was read."""

    name: str
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    future: Future[SearchAnswer] = field(default_factory=Future)
    deadline: Deadline = field(default_factory=lambda: Deadline(None))
    canceled: bool = False
    query: Query | None = None

    @property
    def status(self) -> Literal["waiting", "running", "done", "failed"]:
        if not self.future.done():
            return "running" if self.future.running() else "waiting"
        return "done" if self.error is None else "failed"

    @property
    def error(self) -> BaseException | None:
        """Why a job that has ended has no answer."""
        return self.deadline.error() if self.future.cancelled() else self.future.exception()

    def cancel(self) -> None:
        """End a search that waits or runs; one that has ended stays as it is."""
        self.canceled = True
        self.deadline.cancel()
        self.future.cancel()


class SearchJobs:
    """Runs searches. Any thread may ask."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(SEARCHES_AT_ONCE, thread_name_prefix="search")
        self._guard = threading.RLock()
        self._jobs: dict[str, Job] = {}
        self._taken: Counter[str] = Counter()

    @property
    def busy(self) -> int:
        """Searches that run or wait, and uploads that are being received."""
        with self._guard:
            return self._taken.total()

    @contextmanager
    def place(self, address: str) -> Iterator[None]:
        """A place among those that run and wait. Raises Refusal `busy` where all are taken, or half of them by this address."""
        with self._guard:
            own, places = self._taken[address], SEARCHES_AT_ONCE + MAX_WAITING
            if self.busy >= places or own >= places / 2:
                sentence = f"search: {self.busy} searches run or wait, {own} of them yours; try again in {RETRY_S} s"
                raise Refusal(503, "busy", sentence, {"retry-after": str(RETRY_S)})
            self._taken[address] += 1
        try:
            yield
        finally:
            with self._guard:
                self._taken -= Counter({address: 1})  # one that has none left goes

    def start(self, job: Job, work: Callable[[Job], SearchAnswer], *, release: Callable[[], object]) -> None:
        """Run a search when its turn comes. release: called once, at its end."""

        def run() -> SearchAnswer:
            job.deadline = Deadline(SEARCH_TIMEOUT_S)
            if job.canceled:  # at the moment of its turn
                job.deadline.cancel()
            return work(job)

        with self._guard:
            self._jobs[job.id] = job
            self._forget()
        job.future = self._pool.submit(run)
        job.future.add_done_callback(lambda _: release())

    def get(self, job_id: str) -> Job:
        """Raises Refusal `unknown_job` for one that is not kept any more."""
        found = self._jobs.get(job_id)
        if found is None:
            raise Refusal(404, "unknown_job", f"jobs: there is no search {job_id!r:.100} any more; search again")
        return found

    def close(self) -> None:
        """End all searches and wait for those that run."""
        for job in list(self._jobs.values()):
            job.cancel()
        self._pool.shutdown(wait=True)

    def _forget(self) -> None:
        """Keep the last KEPT_JOBS that have ended, fewer where their queries need more than KEPT_BYTES."""
        room = KEPT_BYTES
        ended = [job for job in self._jobs.values() if job.future.done()]
        for number, job in enumerate(reversed(ended)):
            room -= 0 if job.query is None else job.query.features.num_bytes
            if number >= KEPT_JOBS or room < 0:
                del self._jobs[job.id]
