"""The app with its page, guard and headers; and the service as a process: uvicorn on one address,
until it is told to end."""

import asyncio
import math
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import uvicorn
from fastapi import Depends, FastAPI
from starlette.datastructures import MutableHeaders
from starlette.responses import RedirectResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from hapvr import __version__
from hapvr.data.filesystem import allow_open_files
from hapvr.errors import ArgumentError, DataError, HapvrError
from hapvr.search.collection import MAX_OPEN_SHARDS
from hapvr.serving import answers, folders, marks, pairs, refusals, searches, videos, watch
from hapvr.serving.guard import Guard, is_loopback
from hapvr.serving.service import Service, caller_of, request_of_address
from hapvr.serving.uploads import bounded_body, upload_folder
from hapvr.steps.project import Project
from hapvr.video.kept_workers import end_idle_workers

MAX_CONNECTIONS = 256

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob:; media-src 'self' blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def safe_headers(app: ASGIApp) -> ASGIApp:
    """Adds HEADERS to every answer, keeps what is not media out of caches, and hangs up after a
    refusal: otherwise the rest of a refused upload would still be received."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
                if message["status"] >= 400:
                    headers["connection"] = "close"

            await send(message)

        await app(scope, receive, send_safely if scope["type"] == "http" else send)

    return answer


class Connection(H11Protocol):
    """uvicorn's. The connection number MAX_CONNECTIONS takes the place of the one whose client has
    been silent for longest, neither sending what is due nor reading its answer: so nobody locks
    others out by waiting."""

    heard_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        silent = [
            connection
            for connection in self.connections
            if isinstance(connection, Connection) and connection.waits_for_client()
        ]
        super().connection_made(transport)
        self.heard_s = self.loop.time()
        if len(self.connections) >= MAX_CONNECTIONS and silent:
            longest = min(silent, key=lambda connection: connection.heard_s)
            longest.heard_s = math.inf  # it is in `connections` until the loop comes round
            longest.transport.abort()

    def data_received(self, data: bytes) -> None:
        self.heard_s = self.loop.time()
        super().data_received(data)

    def resume_writing(self) -> None:
        self.heard_s = self.loop.time()
        super().resume_writing()

    def waits_for_client(self) -> bool:
        """Whether the rest of a request is due, or an answer is not read."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused


def create_app(service: Service, *, any_host: bool) -> FastAPI:
    """The app of a service. any_host: it is meant to be reached by other names than this
    machine's."""

    def open_index() -> None:
        with suppress(HapvrError):  # which GET /index and every search say
            service.collection.current()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # No request waits for the model.
        threading.Thread(target=open_index, name="open index").start()
        with upload_folder() as service.uploads:
            if service.processes is not None:
                service.processes.start()
            try:
                yield
            finally:  # a second Ctrl-C cancels what waits here
                if service.processes is not None:
                    service.processes.close()
                await service.jobs.close()
                service.duplicate_job.close()
                service.updating.close()
                service.watching.close()
                # uvicorn ends the process by the signal that it got, so nothing else would
                end_idle_workers()

    # the pages of docs_url and redoc_url would load scripts from elsewhere
    app = FastAPI(
        title="HAP-VR search",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses={"default": {"model": refusals.Problem, "description": "An error"}},
        exception_handlers=dict.fromkeys(refusals.ANSWERED, refusals.answer),  # type: ignore[arg-type]
    )
    app.state.service = service
    app.include_router(videos.probes)
    guarded = [Depends(request_of_address), Depends(caller_of)]
    for room in (searches, answers, videos, marks, watch, pairs, folders):
        app.include_router(room.router, dependencies=guarded)
    # Programs' people look there; FastAPI's own page would load scripts from elsewhere.
    app.add_route("/docs", lambda _: RedirectResponse("./#/requests"), include_in_schema=False)
    app.mount("/", StaticFiles(packages=[("hapvr.serving", "page")], html=True))
    app.add_middleware(bounded_body, max_bytes=service.limits.max_bytes)
    app.add_middleware(Guard, any_host=any_host)
    app.add_middleware(safe_headers)
    return app


class Server:
    """A server that listens; what is asked before `run` waits for it."""

    def __init__(
        self,
        project: Project,
        *,
        host: str,
        port: int,
        allow_remote: bool = False,
        token_file: Path | None = None,
        model: str | None = None,
        workers: int = 1,
    ) -> None:
        """port: 0 for any that is free. Other arguments and errors: see `Service`. Raises
        ArgumentError for an address that others reach without token_file or allow_remote, and
        DataError for an address in use."""
        if not is_loopback(host) and token_file is None and not allow_remote:
            raise ArgumentError(
                f"--host {host}: others could reach this address, and the service has no "
                "authentication; leave it at 127.0.0.1, give a --token-file, or add "
                "--allow-remote and put a proxy with a login before it"
            )

        service = Service(
            project,
            model=model,
            token_file=token_file,
            is_local=is_loopback(host),
            workers=workers,
        )
        self.app = create_app(service, any_host=allow_remote or token_file is not None)
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=128)
        except (OSError, OverflowError, UnicodeError) as error:
            hint = "end what uses this port, or choose another by --port"
            raise DataError(f"serve: cannot listen on {host}:{port} ({error}); {hint}") from error

        self.port = int(self._socket.getsockname()[1])
        shown_host = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown_host}:{self.port}"
        config = uvicorn.Config(
            self.app,
            http=Connection,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="none",  # whoever asks for a web socket is answered as if they had not
            limit_concurrency=2 * MAX_CONNECTIONS,  # those that are being closed included
            timeout_keep_alive=15,
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM."""
        allow_open_files(2 * MAX_OPEN_SHARDS)  # of this version of the index, and of the one before
        with suppress(KeyboardInterrupt):  # uvicorn ends well by it, and raises it again
            self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """End `run`, which another thread is in."""
        self._server.should_exit = True
