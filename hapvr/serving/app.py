"""The app: endpoints, page, guard and headers."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hapvr import __version__
from hapvr.errors import HapvrError
from hapvr.serving import collection_routes, media_routes, pair_routes, refusals, search_routes
from hapvr.serving.guard import Guard
from hapvr.serving.service import Service
from hapvr.stages.project import Project

_LOG = logging.getLogger(__name__)
PAGE_FOLDER = "page"
PAGE_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "media-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class SafeHeaders:
    """Adds HEADERS to every answer, keeps what is no media out of caches, and hangs up after a refusal: otherwise the rest
    of a refused upload would still be received."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
                if message["status"] >= 400:
                    headers["connection"] = "close"
            await send(message)

        await self.app(scope, receive, send_safely if scope["type"] == "http" else send)


def create_app(
    project: Project,
    *,
    any_host: bool = False,
    model: str | None = None,
    ready: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The service over a project. any_host: it is meant to be reached by other names than this machine's. model: as
    `Searcher.open` takes it. ready: called when it starts.

    Raises ConfigError for wrong values of the environment.
    """
    service = Service.of(project, model=model)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # the first request need not wait for the model; what is wrong is told to whom it concerns
        threading.Thread(target=_open, args=(service,), name="open index", daemon=True).start()
        ready()
        yield
        service.jobs.close()

    # the pages of docs_url and redoc_url would load scripts from elsewhere
    app = FastAPI(title="HAP-VR search", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    for module in (search_routes, collection_routes, pair_routes, media_routes):
        app.include_router(module.router)
    for name, content in page_files().items():
        kind = PAGE_TYPES[name[name.rindex(".") :]]
        app.get("/" if name == "index.html" else f"/{name}", include_in_schema=False)(_file(content, kind))
    refusals.install(app, service.names)
    app.add_middleware(Guard, any_host=any_host)
    app.add_middleware(refusals.JsonRefusals)
    app.add_middleware(SafeHeaders)
    return app


def page_files() -> dict[str, bytes]:
    """The files of the page by name."""
    folder = files("hapvr.serving") / PAGE_FOLDER
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.name.endswith(tuple(PAGE_TYPES))}


def _file(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        return Response(content, media_type=kind)

    return answer


def _open(service: Service) -> None:
    try:
        service.collection.current()
    except HapvrError as error:  # GET /index and every search say so, too
        _LOG.warning("nothing can be searched yet: %s", error)
