"""Searches: a few at once, each in a thread, a bounded number that waits, and their answers for a
while. And the step of duplicates in the background, for people who have no Dagster.

Only the event loop starts, ends and forgets them.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel

from hapvr.scorer.access import Deadline
from hapvr.search.match import Query, SearchAnswer
from hapvr.serving.collection import OpenIndex
from hapvr.serving.refusals import Refusal, describe
from hapvr.serving.settings import MAX_AT_ONCE
from hapvr.steps.duplicate_groups import make_duplicate_groups
from hapvr.steps.duplicate_pairs import make_duplicate_pairs, outdated_pairs
from hapvr.steps.searcher import Searcher, SearchOptions

SEARCH_TIMEOUT_S = 300.0
"""Limit for one search, not counting its time in the queue."""

SEARCHES_AT_ONCE = 2
"""In the process of the service; other processes answer one each."""

MAX_WAITING = 32
"""Searches that wait, uploads that are being received included; more are refused."""

RETRY_S = 5
KEPT_JOBS = 64
KEPT_BYTES = 512 * 2**20
"""Memory for the features of queries, which matrices of pairs are made from."""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(eq=False)
class Job:
    """One search. query: once it was read. running: since its turn has come. address: of who
    asks. since: when they asked, ISO 8601, UTC."""

    name: str
    options: SearchOptions
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    task: asyncio.Task[SearchAnswer] = field(init=False)
    deadline: Deadline = field(default_factory=lambda: Deadline(None))
    running: bool = False
    address: str = ""
    query: Query | None = None
    since: str = field(default_factory=_now)

    @property
    def status(self) -> Literal["waiting", "running", "done", "failed"]:
        if not self.task.done():
            return "running" if self.running else "waiting"
        return "done" if self.error is None else "failed"

    @property
    def error(self) -> BaseException | None:
        """Why a job has ended without an answer; None where it has one, or has not ended."""
        if self.task.cancelled():
            return self.deadline.error()
        return self.task.exception() if self.task.done() else None

    @property
    def video_ids(self) -> set[str]:
        """The videos of the collection that it names."""
        names = set[str]()
        if self.query is not None and self.query.video_id:
            names.add(self.query.video_id)
        if self.status == "done":
            names.update(match.reference for match in self.task.result().matches)
        return names

    def read_query(self) -> Query:
        """What was searched for. Raises Refusal `gone` where it could not be read."""
        if self.query is None:
            raise Refusal(
                410, "gone", "jobs: the query of this search could not be read; search again"
            )
        return self.query

    def cancel(self) -> None:
        """End a search that waits or runs; one that has ended stays as it is."""
        self.deadline.cancel()
        if not self.running:
            self.task.cancel()


class SearchJobs:
    """Runs searches. busy: how many run or wait, with uploads that are being received."""

    def __init__(
        self,
        at_once: int | None = None,
        *,
        are_known: Callable[[Set[str]], bool] = lambda video_ids: True,
    ) -> None:
        """How searches are run and found.

        at_once: how many run at the same time; default is SEARCHES_AT_ONCE.
        are_known: whether none of these videos was forgotten.
        """
        self.busy = 0
        self._are_known = are_known
        self._at_once = at_once
        self._threads = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="search")
        self._changed = asyncio.Condition()
        self._running: Counter[str] = Counter()
        self._jobs: dict[str, Job] = {}
        self._taken: Counter[str] = Counter()

    @property
    def at_once(self) -> int:
        """How many run at the same time."""
        return SEARCHES_AT_ONCE if self._at_once is None else self._at_once

    @contextmanager
    def place(self, address: str) -> Iterator[str]:
        """A place among those that run and wait. Raises Refusal `busy` where all are taken, or half
        of them by this address."""
        own = self._taken[address]
        places = self.at_once + MAX_WAITING
        if self.busy >= places or own >= places / 2:
            sentence = (
                f"search: {self.busy} searches run or wait, {own} of them yours; try "
                f"again in {RETRY_S} s"
            )
            raise Refusal(503, "busy", sentence, {"retry-after": str(RETRY_S)})

        self._taken[address] += 1
        self.busy += 1
        try:
            yield address
        finally:
            self.busy -= 1
            self._taken -= Counter({address: 1})  # one that has none left goes

    def _free(self, address: str) -> bool:
        """Whether a search of this address may run: not a second one while those of others wait."""
        running = self._running.total()
        own = self._running[address]
        others_wait = self.busy - self._taken[address] > running - own
        return running < self.at_once and not (own and others_wait)

    def start(
        self, job: Job, work: Callable[[Job], SearchAnswer], *, release: Callable[[], object]
    ) -> None:
        """Run a search when its turn comes. release: called once, at its end."""

        async def run() -> SearchAnswer:
            async with self._changed:
                await self._changed.wait_for(lambda: self._free(job.address))
                self._running[job.address] += 1

            try:
                job.deadline = Deadline(SEARCH_TIMEOUT_S)
                job.running = True
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, work, job)
            finally:
                self._running -= Counter({job.address: 1})
                async with self._changed:
                    self._changed.notify_all()

        job.task = asyncio.create_task(run())
        job.task.add_done_callback(lambda _: release())
        self._jobs[job.id] = job
        self._drop_old()

    def _drop_old(self) -> None:
        """Keep at most KEPT_JOBS of those that have ended, with queries of KEPT_BYTES."""
        ended = [job for job in self._jobs.values() if job.task.done()]
        # Those that failed go first, so that a flood of them removes no answer.
        ended.sort(key=lambda job: job.error is None)
        room = KEPT_BYTES
        for number, job in enumerate(reversed(ended)):
            if job.query is not None:
                room -= job.query.features.num_bytes
            if number >= KEPT_JOBS or room < 0:
                del self._jobs[job.id]

    def find(self, job_id: str) -> Job | None:
        """A job; None for one that is not kept any more, or that names a video that was
        forgotten."""
        job = self._jobs.get(job_id)
        return job if job is not None and self._are_known(job.video_ids) else None

    def get(self, job_id: str) -> Job:
        """Raises Refusal `unknown_job` for one that is not kept any more."""
        job = self.find(job_id)
        if job is None:
            sentence = f"jobs: there is no search {job_id!r:.100} any more; search again"
            raise Refusal(404, "unknown_job", sentence)

        return job

    async def close(self) -> None:
        """End all searches and wait for those that run."""
        jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()
        tasks = [job.task for job in jobs]
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown()


class DuplicateJobState(BaseModel):
    """How far the collection is looked through. error: why the last attempt ended."""

    running: bool = False
    done: int = 0
    total: int = 0
    error: str = ""


class DuplicateJob:
    """Does what `hapvr duplicates` does, once at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="duplicates")
        self._end = Deadline(None)
        self.state = DuplicateJobState()

    def start(self, index: OpenIndex) -> DuplicateJobState:
        """Begin with the shards that were not looked through yet, unless that is under way."""
        if not self.state.running:
            self.state = DuplicateJobState(running=True)
            self._pool.submit(self._run, index.searcher, self.state)
        return self.state

    def close(self) -> None:
        """End it and wait for that; shards that are finished stay."""
        self._end.cancel()
        self._pool.shutdown()

    def _run(self, searcher: Searcher, state: DuplicateJobState) -> None:
        def progress(number: int, _total: int, _frames: int = 0, /) -> None:
            self._end.check()
            state.done = before + number

        before = 0
        try:
            counts = {
                key: len(searcher.collection.video_ids(key))
                for key in outdated_pairs(searcher.project)
            }
            state.total = sum(counts.values())
            for key, count in counts.items():
                make_duplicate_pairs(searcher.project, searcher, key, progress=progress)
                before += count

            make_duplicate_groups(searcher.project, searcher, progress=lambda *_: self._end.check())
        except BaseException as error:  # Rust's PanicException is not an Exception
            state.error = describe(error)[1]["error"]
        finally:
            state.running = False
