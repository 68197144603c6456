"""What the endpoints share: the service, what requests give, and who may ask: bearer tokens, of
which a file has the digests, and a ticket for what browsers load without headers."""

import hashlib
import hmac
import os
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import anyio
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field

from hapvr.data.manifest import manifest_table
from hapvr.errors import ConfigError, DataError
from hapvr.files import require_regular
from hapvr.processors import processors
from hapvr.scorer.access import access_from_environment, limits_from_environment
from hapvr.search.marks import LOCAL_USER
from hapvr.search.match import SearchAnswer
from hapvr.serving.background import Work
from hapvr.serving.collection import Collection, OpenIndex
from hapvr.serving.jobs import RETRY_S, DuplicateJob, Job, SearchJobs
from hapvr.serving.kept import KeptAnswers
from hapvr.serving.metrics import Metrics
from hapvr.serving.refusals import Refusal
from hapvr.serving.search_process import ProcessPlan
from hapvr.serving.search_processes import SearchProcesses
from hapvr.serving.search_work import QuerySource, SearchWork
from hapvr.steps.project import Project

Name = Annotated[str, Field(max_length=4096)]
SomeName = Annotated[str, Field(min_length=1, max_length=4096)]
Count = Annotated[int, Field(ge=1, le=1000)]
Offset = Annotated[int, Field(ge=0)]
LOADED_BY_BROWSERS = ("/media/", "/thumbnails/", "/query-pictures/", "/watch-pictures/")
"""What a page has its browser load, which sends no headers of the page."""

MAX_ANSWERING = 32
"""Requests of one address that are answered at once: fewer than the 40 threads that answer them."""

_LINE = re.compile(r"([\w.@-]{1,64})\s+(read|mark)\s+([0-9a-f]{64})")
_BEARER = HTTPBearer(
    auto_error=False, description="Only where the service was started with --token-file."
)


class Values(BaseModel):
    """What a request gives; other names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


@dataclass(frozen=True, kw_only=True)
class SearchedFor:
    """What a search was for, or the first video of a pair that is marked."""

    name: str
    sha256: str = ""
    """of its file, "" of what is not a file"""
    video_id: str = ""
    """of the collection, "" of a file that was sent or named"""


class Service:
    """What the endpoints share."""

    def __init__(
        self,
        project: Project,
        *,
        model: str | None = None,
        token_file: Path | None = None,
        is_local: bool = True,
        workers: int = 1,
    ) -> None:
        """Opens what requests share.

        model: as `Searcher.open` takes it.
        token_file: as `read_tokens` does.
        is_local: whether only this machine reaches the service.
        workers: processes that search; 1: threads of this one do.

        Raises:
            ConfigError: for a wrong file or environment.
        """
        self.is_local = is_local
        self.project = project
        self.limits = limits_from_environment(project.config.serving)
        self.access = access_from_environment()
        self.collection = Collection(project, model=model)
        self.jobs = SearchJobs(None if workers == 1 else workers, are_known=self.are_known)
        self.kept = KeptAnswers(project)
        self.duplicate_job = DuplicateJob()
        self.updating = Work("update")
        """Takes in new files."""
        self.watching = Work("watch")
        """Compares the collection with the watch lists."""
        self.bearers = None if token_file is None else read_tokens(token_file)
        """By the digest of a token; None where everybody may do everything."""
        self.ticket = "" if token_file is None else secrets.token_hex()
        """Lets browsers load pictures and videos, until the service ends."""
        self.metrics = Metrics(self.jobs, self.collection)
        self.processes = None if workers == 1 else self._search_processes(workers, model)
        """Where searches are answered; None: in this process."""
        self.metrics.processes = self.processes
        self.answering: Counter[str] = Counter()
        """Requests of each address that are being answered."""
        self.uploads = Path()
        """Where files that are sent are stored, see `upload_folder`."""
        self.reading = anyio.CapacityLimiter(4)
        """For what reads frames and compares pairs: few at once, so that other requests find free
        threads."""

    def _search_processes(self, count: int, model: str | None) -> SearchProcesses:
        """Processes that share the processors of this one."""
        plan = ProcessPlan(
            config=self.project.config,
            root=self.project.root.url,
            folder=self.project.folder,
            model=model,
            access=self.access,
            limits=self.limits,
            num_processors=max(processors() // count, 1),
        )
        return SearchProcesses(plan, count, collection=self.collection, took=self.metrics.took)

    def answer(self, source: QuerySource, job: Job) -> SearchAnswer:
        """Answer a search here or in another process, see `SearchWork.answer`."""
        if self.processes is not None:
            return self.processes.answer(source, job)
        work = SearchWork(
            collection=self.collection, kept=self.kept, access=self.access, limits=self.limits
        )
        return work.answer(source, job, timed=self.metrics.timed)

    def are_known(self, video_ids: AbstractSet[str]) -> bool:
        """Whether none of the videos was forgotten, as far as the open index tells."""
        index = self.collection.opened
        indexed = {} if index is None else index.searcher.collection.shard_of
        missing = video_ids - indexed.keys()
        if not missing:
            return True
        try:
            # it also has those whose files cannot be used any more
            listed = manifest_table(self.project.root)["video_id"].to_pylist()
        except DataError:  # the data root is offline: what was answered stands
            return True

        return missing.issubset(listed)

    def live_job(self, job_id: str) -> Job:
        """A search with all that it read. Raises Refusal `gone` where only its answer is kept, and
        `unknown_job`."""
        if self.jobs.find(job_id) is None and self.kept.read(job_id) is not None:
            sentence = (
                "jobs: the answer is kept, but not every frame of what was searched for; search "
                "once more to look closer"
            )
            raise Refusal(410, "gone", sentence)

        return self.jobs.get(job_id)

    def searched_for(self, job_id: str) -> SearchedFor:
        """What a search was for, also where only its answer is kept. Raises Refusal
        `unknown_job`."""
        job = self.jobs.find(job_id)
        kept = self.kept.read(job_id) if job is None else None
        if kept is not None:
            video_id = kept.answer.query_id
            return SearchedFor(name=kept.name, sha256=kept.sha256, video_id=video_id)

        job = job or self.jobs.get(job_id)
        if job.query is None:
            return SearchedFor(name=job.name)
        return SearchedFor(name=job.name, sha256=job.query.sha256, video_id=job.query.video_id)


async def service_of(request: Request) -> Service:
    """The service of the app that got a request."""
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(service_of)]


async def request_of_address(request: Request, service: ServiceOf) -> AsyncIterator[None]:
    """Raises Refusal `busy` where too many of one address are being answered: others would find no
    place."""
    address = request.client.host if request.client else ""
    if service.answering[address] >= MAX_ANSWERING:
        sentence = f"request: {MAX_ANSWERING} of yours are being answered; try again in {RETRY_S} s"
        raise Refusal(503, "busy", sentence, {"retry-after": str(RETRY_S)})

    service.answering[address] += 1
    try:
        yield
    finally:
        service.answering -= Counter({address: 1})


def index_of(service: ServiceOf) -> OpenIndex:
    """As `Collection.current`."""
    return service.collection.current()


async def place_of(request: Request, service: ServiceOf) -> AbstractContextManager[str]:
    """A place among the searches for the sender of a request, see `SearchJobs.place`."""
    return service.jobs.place(request.client.host if request.client else "")


@dataclass(frozen=True)
class Caller:
    """Who sends a request: by what name, and whether they may change marks and start work or only
    read."""

    name: str
    may_mark: bool


def read_tokens(path: Path) -> dict[str, Caller]:
    """SHA-256 of each token -> its bearer, from a file of lines `NAME ROLE SHA256`; ROLE is `read`
    or `mark`, which may read too. Raises ConfigError for a file that others can read or change, and
    for a line that says something else."""
    try:
        require_regular(path)
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--token-file {path}: it cannot be read ({error}); see docs/search.md, Tokens"
        ) from error

    if mode & 0o077:
        raise ConfigError(
            f"--token-file {path}: other users can read or change it; run `chmod 600 {path}`"
        )

    callers: dict[str, Caller] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = _LINE.fullmatch(line.strip())
        if parts is None or parts[3] in callers:
            # The line may be a token itself, so it is not shown.
            raise ConfigError(
                f"--token-file {path}, line {number}: expected a name, `read` or `mark`, and the "
                "SHA-256 of the token in hexadecimal, of each token once"
            )

        name, role, digest = parts.groups()
        callers[digest] = Caller(name, may_mark=role == "mark")

    return callers


async def caller_of(
    request: Request,
    service: ServiceOf,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
) -> Caller:
    """Who sent a request: by a token, or by the ticket for what a browser loads without headers.
    Raises Refusal `no_token` for nobody that is known."""
    if service.bearers is None:
        return Caller(LOCAL_USER, may_mark=True)
    token = given.credentials if given else ""
    if token:
        bearer = service.bearers.get(hashlib.sha256(token.encode()).hexdigest())
        if bearer is not None:
            return bearer

    if request.url.path.startswith(LOADED_BY_BROWSERS):
        ticket = request.query_params.get("ticket", "")
        if hmac.compare_digest(ticket.encode(), service.ticket.encode()):
            return Caller("ticket", may_mark=False)

    sentence = (
        "token: this service answers to those with a token; send it as "
        "`Authorization: Bearer TOKEN`"
    )
    if token:
        sentence = (
            "token: this service does not know the token that was sent; ask whoever runs it for "
            "one that is valid"
        )

    raise Refusal(401, "no_token", sentence, {"www-authenticate": "Bearer"})


async def marker_of(caller: Annotated[Caller, Depends(caller_of)]) -> Caller:
    """Who sent a request that changes something. Raises Refusal `wrong_role` for somebody who may
    only read."""
    if not caller.may_mark:
        sentence = f"token: {caller.name} may only read; this needs a token with the role `mark`"
        raise Refusal(403, "wrong_role", sentence)
    return caller


async def has_paths_of(service: ServiceOf, caller: Annotated[Caller, Depends(caller_of)]) -> bool:
    """Whether the sender of a request may see where files lie: whoever works on the collection."""
    if service.bearers is None:
        return service.is_local
    return caller.may_mark


CallerOf = Annotated[Caller, Depends(caller_of)]
HasPathsOf = Annotated[bool, Depends(has_paths_of)]
IndexOf = Annotated[OpenIndex, Depends(index_of)]
PlaceOf = Annotated[AbstractContextManager[str], Depends(place_of)]
MarkerOf = Annotated[Caller, Depends(marker_of)]
