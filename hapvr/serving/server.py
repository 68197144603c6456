"""The service as a process: uvicorn on one address, until it is told to end."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from hapvr.errors import ArgumentError, DataError
from hapvr.serving.app import create_app
from hapvr.serving.guard import is_loopback
from hapvr.stages.project import Project

DEFAULT_HOST = "127.0.0.1"
MAX_CONNECTIONS = 256
IDLE_S = 15


class Server:
    """A server that listens, and answers once `run` is called."""

    def __init__(
        self, project: Project, *, host: str, port: int, allow_remote: bool = False, model: str | None = None
    ) -> None:
        """port: 0 for any that is free. model: as `Searcher.open` takes it.

        Raises ArgumentError for an address that others reach, unless allow_remote, and DataError for one in use.
        """
        if not is_loopback(host) and not allow_remote:
            raise ArgumentError(
                f"--host {host}: others could reach this address, and the service asks nobody who is there; leave it at "
                f"{DEFAULT_HOST}, or add --allow-remote and put a proxy with a login before it"
            )
        self._ready: Callable[[], None] = lambda: None
        app = create_app(project, any_host=allow_remote, model=model, ready=lambda: self._ready())
        self._socket = _listening(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="none",  # whoever asks for a web socket is answered as if they had not
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGINT or SIGTERM. ready: called once it is about to answer; connections wait from then on."""
        self._ready = ready
        with suppress(KeyboardInterrupt):  # uvicorn ends well by it, and raises it again
            self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """End `run`, which another thread is in."""
        self._server.should_exit = True


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, OverflowError, UnicodeError) as error:
        listening.close()
        raise DataError(
            f"serve: cannot listen on {host}:{port} ({error}); end what uses this port, or choose another by --port"
        ) from error
    return listening
