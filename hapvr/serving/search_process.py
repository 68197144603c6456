"""A process that answers searches for the service, one at a time: under the global interpreter lock
a program uses hardly more than one processor, however many threads search in it.

It has an index of its own, reopened as that of the service is. The service sends a `ProcessPlan`
once, then a `Wanted` or CANCEL; the process sends READY once, then, for each search, `Read`, `Took`
and at last `Ended`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

from hapvr.config import Config
from hapvr.data.filesystem import DataRoot
from hapvr.errors import HapvrError
from hapvr.reporting import report_for_people
from hapvr.scorer.access import Access
from hapvr.search.match import Query, SearchAnswer
from hapvr.serving.collection import Collection
from hapvr.serving.jobs import Job
from hapvr.serving.kept import KeptAnswers
from hapvr.serving.search_work import QuerySource, SearchWork
from hapvr.settings import ServingConfig
from hapvr.steps.project import Project
from hapvr.steps.searcher import SearchOptions
from hapvr.video.kept_workers import end_idle_workers
from hapvr.video.pool import killed_workers

READY = "ready"
CANCEL = "cancel"

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ProcessPlan:
    """What each process opens: values that it can be sent."""

    config: Config
    root: str
    folder: Path
    model: str | None
    access: Access
    limits: ServingConfig
    num_processors: int
    """That one search may use."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A search. state: of the index that the service has open, see `OpenIndex`; an older one does
    not answer."""

    job: str
    name: str
    options: SearchOptions
    source: QuerySource
    state: str


@dataclass(frozen=True)
class Read:
    """The query was read."""

    query: Query


@dataclass(frozen=True)
class Took:
    """How long a part of the search took."""

    part: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A search has its answer, or an error. killed: decoders that hung or died, by reason."""

    answer: SearchAnswer | None = None
    error: Exception | None = None
    killed: Mapping[str, int]


def serve_searches(connection: Connection) -> None:
    """Answer what comes through a connection, a `ProcessPlan` first, until that is closed: runs in
    a process of its own."""
    report_for_people()
    plan: ProcessPlan = connection.recv()
    project = Project(plan.config, DataRoot(plan.root), plan.folder)
    work = SearchWork(
        collection=Collection(project, model=plan.model, verifies=False),
        kept=KeptAnswers(project),
        access=plan.access,
        limits=plan.limits,
    )
    with suppress(HapvrError):  # which every search says
        work.collection.current()

    arrived: SimpleQueue[tuple[Wanted, Job]] = SimpleQueue()
    listening = threading.Thread(target=_listen, args=(connection, arrived), daemon=True)
    listening.start()
    connection.send(READY)
    while True:
        wanted, job = arrived.get()
        connection.send(_search(connection, work, wanted, job))


def _listen(connection: Connection, arrived: SimpleQueue[tuple[Wanted, Job]]) -> None:
    """Pass on searches, and cancel the one that came last; end the process when the service has
    gone."""
    job: Job | None = None
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            end_idle_workers()  # which `os._exit` leaves behind
            os._exit(0)

        if isinstance(message, Wanted):
            job = Job(message.name, message.options, id=message.job)
            arrived.put((message, job))
        elif job is not None:
            job.deadline.cancel()


def _search(connection: Connection, work: SearchWork, wanted: Wanted, job: Job) -> Ended:
    """Answer a search."""

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        begun_s = time.perf_counter()
        try:
            yield
        finally:
            connection.send(Took(part, time.perf_counter() - begun_s))

    def on_read(query: Query) -> None:
        connection.send(Read(query))

    answer: SearchAnswer | None = None
    error: Exception | None = None
    try:
        work.collection.reach(wanted.state)
        answer = work.answer(wanted.source, job, timed=timed, on_read=on_read)
    except HapvrError as known:
        error = known
    except BaseException as unforeseen:  # Rust's PanicException is not an Exception
        _LOG.error("unforeseen error", exc_info=unforeseen)
        error = RuntimeError(f"{type(unforeseen).__name__}: {unforeseen}")

    killed = dict(killed_workers)
    killed_workers.clear()
    return Ended(answer=answer, error=error, killed=killed)
