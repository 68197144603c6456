"""What the endpoints share: the collection, the searches, what may be read, and how an answer looks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import anyio
from fastapi import Depends, Request

from hapvr.errors import VideoError
from hapvr.scorer.access import Access, access_from_environment, limits_from_environment
from hapvr.scorer.settings import ServingConfig
from hapvr.search.match import SearchAnswer, answer_values
from hapvr.serving.collection import Collection, OpenIndex
from hapvr.serving.jobs import Job, SearchJobs
from hapvr.serving.known_pairs import KnownPairs
from hapvr.serving.refusals import describe, without_places
from hapvr.serving.requests import SearchAsked
from hapvr.serving.settings import ServiceSettings
from hapvr.serving.uploads import Upload
from hapvr.stages.project import Project
from hapvr.stages.searcher import SearchOptions

READS_AT_ONCE = 4


@dataclass(frozen=True, eq=False)
class Service:
    """names: places of this machine -> what answers call them."""

    project: Project
    settings: ServiceSettings
    limits: ServingConfig
    access: Access
    collection: Collection
    jobs: SearchJobs
    names: dict[str, str]

    @cached_property
    def reading(self) -> anyio.CapacityLimiter:
        """For what reads frames and compares pairs: few at once, so that other requests find free threads."""
        return anyio.CapacityLimiter(READS_AT_ONCE)

    @cached_property
    def pairs(self) -> KnownPairs:
        return KnownPairs()

    @staticmethod
    def of(project: Project, *, model: str | None = None) -> Service:
        """model: as `Searcher.open` takes it. Raises ConfigError for wrong values of the environment."""
        settings = project.config.service
        names = {project.root.url: "the data root", str(project.folder): "the project"}
        if project.root.local is not None:
            names[str(project.root.local)] = "the data root"
        return Service(
            project=project,
            settings=settings,
            limits=limits_from_environment(project.config.serving),
            access=access_from_environment(),
            collection=Collection(project, refresh_s=settings.refresh_s, model=model),
            jobs=SearchJobs(settings),
            names={place: name for place, name in names.items() if len(place) > 1},
        )

    def search(self, job: Job, asked: SearchAsked, wanted: SearchOptions) -> SearchAnswer:
        """Answer a query that is named; in a job's own thread."""
        index = self.collection.current()
        if asked.id is not None:
            index.check(asked.id)
            job.query = index.searcher.read_id(asked.id)
        else:
            name = asked.url if asked.url is not None else asked.path
            assert name is not None
            if asked.path is not None and "://" in name:
                raise VideoError("not_allowed", "search: a path is no URL; name it as url")
            if asked.url is not None and "://" not in name:
                raise VideoError("not_allowed", "search: url wants an address such as https://example.org/a.mp4")
            job.query = index.searcher.read(name, access=self.access, limits=self.limits, deadline=job.deadline)
        return index.searcher.answer(job.query, wanted, deadline=job.deadline)

    def search_upload(self, job: Job, upload: Upload, wanted: SearchOptions) -> SearchAnswer:
        """Answer a file that was sent; in a job's own thread."""
        try:
            index = self.collection.current()
            query = index.searcher.read(
                upload.path, name=upload.name, access=Access(), limits=self.limits, deadline=job.deadline
            )
        except Exception as error:
            raise _named(error, upload) from error
        job.query = query
        return index.searcher.answer(query, wanted, deadline=job.deadline)

    def shown(self, job: Job) -> dict[str, Any]:
        """A job as JSON. answer: with its matches, None until there is one; error, code: why there will be none."""
        value: dict[str, Any] = {"job": job.id, "status": job.status, "query": job.name, "error": "", "code": ""}
        value["answer"] = None
        if job.status == "failed" and job.error is not None:
            _, value["code"], value["error"] = describe(job.error, self.names)
        if job.status == "done" and job.answer is not None:
            (answer,) = answer_values([job.answer])
            answer["warnings"] = [without_places(warning, self.names) for warning in answer["warnings"]]
            value["answer"] = answer | {"query_id": job.video_id}
        return value


def _named(error: Exception, upload: Upload) -> Exception:
    """The same error, with the sender's name of a file instead of its temporary place."""
    if not isinstance(error, VideoError):
        return error
    said = str(error).replace(str(upload.path), upload.name).replace(upload.path.name, upload.name)
    return VideoError(error.reason, said)


def service_of(request: Request) -> Service:
    """The service of the app that got a request."""
    found: Service = request.app.state.service
    return found


def index_of(request: Request) -> OpenIndex:
    """The index of this moment. Raises DataError where there is none."""
    return service_of(request).collection.current()


ServiceOf = Annotated[Service, Depends(service_of)]
IndexOf = Annotated[OpenIndex, Depends(index_of)]
