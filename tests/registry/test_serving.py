"""`mlflow models serve`: a real server under load, with broken videos among the requests."""

from __future__ import annotations

import json
import math
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from hapvr.scorer.bundle import load_bundle
from tests.conftest import CHECKOUT
from tests.registry.conftest import Registered

pytestmark = pytest.mark.slow

NUM_REQUESTS = 200
NUM_CLIENTS = 8
MAX_GROWTH_BYTES = 150 * 2**20
HUGE = 10**400
NUMBERS = (True, -1, 0, 1.5, 2**63, HUGE, -HUGE, math.nan, math.inf, -math.inf, "1", "nan", [], [1], {}, "\ud800", "\0")
VALUES = (None, True, -1, HUGE, math.nan, "", "x", "\0", "\x1b[31m", "../../etc/passwd", "a\nb", "\ud800", "a" * 5000,
          "/" * 5000, "file:///etc/passwd", "ftp://x/y", "http://127.0.0.1:9/x", "http://[::1", "pipe:0", [], {}, [None],
          [[["x"]]], {"a": 1})  # fmt: skip
BODIES = (b"", b"{", b"null", b"[]", b"\xff", b'{"dataframe_records": NaN}', b'{"dataframe_records": [{"query": "x"}, "y"]}',
          b'{"dataframe_split": {"columns": ["query", "query"], "data": [["x", "y"]]}}', b'{"messages": 1, "query": ["x"]}',
          b'{"dataframe_split": {"columns": ["query"], "data": [["x", "y"]]}}', b'{"input": [1], "segments": true}',
          b'{"dataframe_records": [{"query": "x", "references": ' + b"[" * 300 + b"]" * 300 + b"}]}")  # fmt: skip


@dataclass(frozen=True)
class Server:
    """A running model server. process: of `mlflow models serve`."""

    address: str
    process: subprocess.Popen[bytes]

    def ask(self, request: dict[str, Any]) -> Any:
        """Rows of an answer, whose JSON may hold no NaN."""
        call = urllib.request.Request(
            f"{self.address}/invocations",
            data=json.dumps(request).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(call, timeout=120) as answer:
            return json.loads(answer.read(), parse_constant=refuse_constant)["predictions"]

    def memory_bytes(self) -> int:
        """Resident memory of the process that holds the model, the largest of the server's."""
        parent = psutil.Process(self.process.pid)
        return max(one.memory_info().rss for one in [parent, *parent.children(recursive=True)])


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def documented_command(port: int) -> list[str]:
    """The command that docs/serving.md prints, on another port."""
    lines = (CHECKOUT / "docs" / "serving.md").read_text(encoding="utf-8").splitlines()
    printed = next(line for line in lines if line.startswith("    mlflow models serve"))
    return shlex.split(printed.replace("5001", str(port)))


@pytest.fixture(scope="module")
def server(registered: Registered, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The champion on a free port of 127.0.0.1, allowed to read the clips' folder alone."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("server")
    environment = os.environ | {
        "MLFLOW_TRACKING_URI": registered.uri,
        "MLFLOW_REGISTRY_URI": registered.uri,
        "HAPVR_ALLOWED_ROOTS": str(registered.clips),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # MLflow runs `uvicorn`
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            documented_command(port), stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True
        )
    started = Server(f"http://127.0.0.1:{port}", process)
    try:
        await_ping(started, folder / "log")
        yield started
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def await_ping(server: Server, log: Path) -> None:
    for _ in range(300):
        if server.process.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{server.address}/ping", timeout=5)
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])


def test_server_answers_a_pair_and_a_list(server: Server, registered: Registered) -> None:
    """The library's similarity, probability and segments over HTTP; values that are not there are null."""
    clips = [str(registered.clips / name) for name in ("a.mp4", "copy.mp4", "bad.mp4")]
    wanted = load_bundle(registered.bundle).score_pairs([(clips[0], clips[1])], segments=True)[0]
    (row,) = server.ask({"dataframe_records": [{"query": clips[0], "reference": clips[1]}]})
    assert row["similarity"] == pytest.approx(wanted.similarity, abs=1e-6)
    assert row["probability"] == pytest.approx(wanted.probability, abs=1e-4)
    rows = server.ask(
        {"dataframe_records": [{"query": clips[0], "references": clips[1:]}], "params": {"segments": True}}
    )
    assert len(rows[0]["segments"]) == len(wanted.segments or ()) == 1
    assert (rows[1]["similarity"], rows[1]["probability"]) == (None, None)
    assert rows[1]["error"].startswith("not_video: ")
    (row,) = server.ask({"dataframe_records": [{"query": clips[0], "reference": "/etc/hostname"}]})
    assert row["error"].startswith("not_allowed: ")


def hostile_requests() -> Iterator[tuple[bytes, str]]:
    """Bodies and content types of some 330 requests that MLflow hands on, or refuses by itself without a stack trace.

    It answers 500 by itself where there is no content type, and to JSON of 3,000 levels or with numbers of 5,000 digits.
    """
    asked = {"query": "x", "reference": "y"}
    wrong: list[dict[str, Any]] = []
    for value in VALUES:
        for name in ("query", "reference", "references"):
            wrong.append({"dataframe_records": [asked | {name: value}]})
        wrong.append({"dataframe_split": {"columns": ["query", "references"], "data": [["x", value]]}})
        wrong += [{name: value} for name in ("dataframe_records", "dataframe_split", "instances", "inputs")]
        wrong += [{"inputs": {"query": ["x"], "references": value}}, {"dataframe_records": [asked], "params": value}]
    for name in ("segments", "precision", "max_pairs", "request_timeout_s"):
        wrong += [{"dataframe_records": [asked], "params": {name: number}} for number in NUMBERS]
    yield from ((json.dumps(request).encode(), "application/json") for request in wrong)
    yield from ((body, "application/json") for body in BODIES)
    for kind in ("", "text/plain", "application/json; charset=utf-16", "multipart/form-data; boundary=x", "a" * 9000):
        yield json.dumps({"dataframe_records": [asked]}).encode(), kind


def test_every_refusal_is_one_sentence(server: Server, registered: Registered) -> None:
    """Hundreds of wrong requests, then 32 at once: no failure of the model, no stack trace, no place of this machine."""
    clips = [str(registered.clips / name) for name in ("a.mp4", "copy.mp4")]
    right = {"dataframe_records": [{"query": clips[0], "reference": clips[1]}], "params": {"segments": True}}
    before = server.ask(right)

    def problem(request: tuple[bytes, str]) -> str:
        body, kind = request
        call = urllib.request.Request(f"{server.address}/invocations", data=body, headers={"Content-Type": kind})
        try:
            with urllib.request.urlopen(call, timeout=60) as answer:
                status, said = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, said = error.code, error.read().decode()
        secret = [
            text for text in ("Traceback", "stack_trace", str(registered.bundle.parent), sys.prefix) if text in said
        ]
        return f"{status} {secret} for {body[:200]!r}: {said[-300:]}" if status >= 500 or secret else ""

    requests = list(hostile_requests())
    assert [text for text in map(problem, requests) if text] == []
    with ThreadPoolExecutor(32) as clients:
        chosen = random.Random(0).sample(requests, 96)
        assert [text for text in clients.map(problem, chosen) if text] == []
    assert server.ask(right) == before
    assert server.process.poll() is None


def test_two_hundred_requests_of_eight_clients(server: Server, registered: Registered) -> None:
    """Good and broken videos mixed: every answer is the library's, nothing crashes, memory stays where it was."""
    names = ["a.mp4", "b.mp4", "copy.mp4", "bad.mp4", "cut.mp4", "absent.mp4"]
    paths = [str(registered.clips / name) for name in names]
    pairs = [(query, reference) for query in paths for reference in paths]
    wanted = {(row.query, row.reference): row for row in load_bundle(registered.bundle).score_pairs(pairs)}
    chosen = random.Random(0).choices(pairs, k=NUM_REQUESTS)

    def wrong(pair: tuple[str, str]) -> str:
        (row,) = server.ask({"dataframe_records": [{"query": pair[0], "reference": pair[1]}]})
        expected = wanted[pair]
        if expected.similarity is None:
            good = row["similarity"] is None and row["error"].split(":")[0] == expected.error.split(":")[0]
        else:
            good = not row["error"] and math.isclose(row["similarity"], expected.similarity, abs_tol=1e-6)
        return "" if good else f"{row} instead of {expected}"

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        assert [text for text in clients.map(wrong, pairs[:16]) if text] == []
        before = server.memory_bytes()
        assert [text for text in clients.map(wrong, chosen) if text] == []
        after = server.memory_bytes()
    assert sum(wanted[pair].similarity is None for pair in chosen) > NUM_REQUESTS // 4
    assert after - before < MAX_GROWTH_BYTES, f"{before / 2**20:.0f} MiB before, {after / 2**20:.0f} MiB after"
    assert server.process.poll() is None
