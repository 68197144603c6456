"""Searches in threads of their own: a few at once, a bounded number that waits, and their answers for a while."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from hapvr.errors import HapvrError, VideoError
from hapvr.scorer.deadline import Deadline
from hapvr.search.match import SearchAnswer
from hapvr.search.query import Query
from hapvr.serving.settings import ServiceSettings


class BusyError(HapvrError):
    """More searches than the service takes. retry_s: when to ask again."""

    def __init__(self, message: str, *, retry_s: int) -> None:
        super().__init__(message)
        self.retry_s = retry_s


Status = Literal["waiting", "running", "done", "failed"]


@dataclass(eq=False)
class Job:
    """One search. query, answer: once there are; query is dropped first where memory is short. release: called at its end.
    video_id: of a query that is in the collection. sha256: of the query's file, "" where there is none or it is not read yet."""

    name: str
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    deadline: Deadline = field(default_factory=lambda: Deadline(None))
    query: Query | None = None
    video_id: str = ""
    sha256: str = ""
    answer: SearchAnswer | None = None
    error: Exception | None = None
    running: bool = False
    canceled: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    future: Future[None] | None = None
    release: Callable[[], None] = lambda: None

    @property
    def status(self) -> Status:
        if self.ended.is_set():
            return "done" if self.error is None else "failed"
        return "running" if self.running else "waiting"


Work = Callable[[Job], SearchAnswer]
Start = Callable[[Job, Work], Job]


class SearchJobs:
    """Runs searches. Any thread may ask."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._pool = ThreadPoolExecutor(settings.searches_at_once, thread_name_prefix="search")
        self._guard = threading.Lock()
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._places = 0
        self._mean_s = 5.0

    @property
    def busy(self) -> int:
        """Searches that run or wait, and uploads that are being received."""
        return self._places

    @contextmanager
    def place(self) -> Iterator[Start]:
        """A place among those that wait, for the time of an upload; what it gives starts the search.

        Raises BusyError where all are taken.
        """
        self._take()
        started = False

        def start(job: Job, work: Work) -> Job:
            nonlocal started
            started = True
            return self._start(job, work)

        try:
            yield start
        finally:
            if not started:
                self._leave()

    def get(self, job_id: str) -> Job:
        """Raises VideoError `unknown_job` for one that is not kept any more."""
        with self._guard:
            if job_id not in self._jobs:
                raise VideoError("unknown_job", f"jobs: there is no search {job_id!r:.100} any more; search again")
            return self._jobs[job_id]

    def cancel(self, job: Job) -> None:
        """End a search that waits or runs; one that has ended stays as it is."""
        job.canceled = True
        job.deadline.cancel()
        if job.future is not None and job.future.cancel():
            self._end(job, job.deadline.error())

    def close(self) -> None:
        """End all searches and wait for those that run."""
        with self._guard:
            jobs = list(self._jobs.values())
        for job in jobs:
            self.cancel(job)
        self._pool.shutdown(wait=True)

    def _take(self) -> None:
        settings = self._settings
        with self._guard:
            if self._places >= settings.searches_at_once + settings.max_waiting:
                retry_s = math.ceil(max(self._mean_s * self._places / settings.searches_at_once, 1))
                raise BusyError(
                    f"search: {self._places} searches run or wait, and no more are taken; try again in {retry_s} s",
                    retry_s=retry_s,
                )
            self._places += 1

    def _leave(self) -> None:
        with self._guard:
            self._places -= 1

    def _start(self, job: Job, work: Work) -> Job:
        with self._guard:
            self._jobs[job.id] = job
            ended = [one for one in self._jobs.values() if one.ended.is_set()]
            for old in ended[: max(len(ended) - self._settings.kept_jobs, 0)]:
                del self._jobs[old.id]
        job.future = self._pool.submit(self._run, job, work)
        return job

    def _run(self, job: Job, work: Work) -> None:
        began = time.monotonic()
        job.running, job.deadline = True, Deadline(self._settings.search_timeout_s)
        if job.canceled:  # before it had this deadline
            job.deadline.cancel()
        error: Exception | None = None
        try:
            job.answer = work(job)
            job.sha256 = "" if job.query is None else job.query.sha256
        except Exception as raised:  # shown to who asks for the job
            error = raised
        self._mean_s = 0.8 * self._mean_s + 0.2 * (time.monotonic() - began)
        self._end(job, error)

    def _end(self, job: Job, error: Exception | None) -> None:
        job.error = error
        job.release()
        with self._guard:
            self._forget_queries(keep=job)
            self._places -= 1
        job.ended.set()

    def _forget_queries(self, *, keep: Job) -> None:
        """Drop the oldest queries' features where they need more memory than they may."""
        held = [job for job in self._jobs.values() if job.query is not None]
        total = sum(num_bytes(job) for job in held)
        for job in held:
            if total <= self._settings.kept_bytes:
                break
            if job is not keep or num_bytes(job) > self._settings.kept_bytes:
                total -= num_bytes(job)
                job.query = None


def num_bytes(job: Job) -> int:
    """Memory of a job's query."""
    return 0 if job.query is None else job.query.features.num_bytes
