"""Requests that are sent piece by piece."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.serving.served import Client

HEAD = (
    "POST /search?name=a.mp4 HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: "
    "application/octet-stream\r\n{size}\r\n\r\n"
)


@contextmanager
def sending(client: Client, size: str, head: str = HEAD) -> Iterator[socket.socket]:
    """A connection over which a head was sent. size: a line of it."""
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
        connection.sendall(head.format(port=client.port, size=size).encode())
        yield connection


def soon(condition: Callable[[], bool]) -> bool:
    """Whether a condition comes true within ten seconds."""
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()
