"""`hapvr serve` in a test."""

from __future__ import annotations

from collections.abc import Callable

from hapvr.serving.server import Server

RUN = Server.run


def run_until_it_answers(server: Server, ready: Callable[[], None]) -> None:
    """In the place of `Server.run`, which serves until it is interrupted."""
    RUN(server, lambda: (ready(), server.stop())[0])
