"""The tracking store: a server that is not there."""

from __future__ import annotations

import socket

import pytest

from hapvr.errors import DataError
from hapvr.tracking.runs import Tracker


def test_a_server_that_does_not_answer_is_named_at_once() -> None:
    """Nobody listens on the port: the address and both remedies are said, without MLflow's minutes of retries."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(DataError, match=rf"no MLflow server answers at http://127.0.0.1:{port}.*tracking.uri"):
        Tracker(f"http://127.0.0.1:{port}", "tests")
