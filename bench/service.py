"""The search service under several clients at once, against the same searches in one process.

    python -m bench.service --config configs/demo.yaml [--data DIR] [--clients 1 8 32] [--requests
    200] [--workers 1 2]

Starts `hapvr serve --workers N` on free ports of this machine; each client sends a search for a
video of the collection as soon as its last one was answered, until all requests are done. The
project must have an index; --data: its data root, if it is not the configuration's.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

from bench.table import parse, show
from hapvr.steps.project import Project
from hapvr.steps.searcher import Searcher, SearchOptions

TOP = 10


@contextmanager
def serving(config: Path, data_root: str, workers: int) -> Iterator[str]:
    """The address of a service in a process of its own, with this many processes that search."""
    run = "from hapvr.cli import main; main()"
    command = [sys.executable, "-c", run, "serve", "--config", str(config), "--port", "0", "--json"]
    command += ["--set", f"data_root={data_root}", "--workers", str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["address"].rstrip("/")
        finally:
            process.terminate()


def ask(address: str, video_id: str, client: int = 0) -> float:
    """Seconds of one search; a long one is a job, which is polled until it is done. client: each
    has an address of its own, since one address may take at most half of the slots."""
    source = (f"127.0.0.{client + 1}", 0)

    def fetch(method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        with closing(
            HTTPConnection(address.removeprefix("http://"), timeout=300, source_address=source)
        ) as connection:
            connection.request(method, path, body, {"content-type": "application/json"})
            values: dict[str, Any] = json.loads(connection.getresponse().read())

        if values.get("error"):
            raise RuntimeError(f"{video_id}: {values}")
        return values

    start = time.perf_counter()
    answer = fetch(
        "POST", "/search", json.dumps({"id": video_id, "top": TOP, "segments": False}).encode()
    )
    while answer["status"] != "done":
        time.sleep(0.01)
        answer = fetch("GET", f"/jobs/{answer['job']}")

    return time.perf_counter() - start


def row(name: str, clients: int, times: Sequence[float], wall: float) -> dict[str, Any]:
    """Rate and percentiles of some searches."""
    p50, p99 = 1e3 * np.percentile(times, (50, 99))
    return {
        "way": name,
        "clients": clients,
        "searches/s": len(times) / wall,
        "p50 ms": p50,
        "p99 ms": p99,
    }


def measured(address: str, queries: Sequence[str], clients: int) -> tuple[list[float], float]:
    """Seconds of each search of some clients at once, and of all together."""
    numbers = (number % clients for number in range(len(queries)))
    with ThreadPoolExecutor(clients) as pool:
        start = time.perf_counter()
        times = list(pool.map(partial(ask, address), queries, numbers))
        return times, time.perf_counter() - start


def main() -> None:
    """Measures and prints a table."""
    options = parse(
        __doc__,
        config=Path("configs/demo.yaml"),
        data="",
        clients=(1, 8, 32),
        requests=200,
        workers=(1,),
    )
    project = Project.open(
        options.config, overrides={"data_root": options.data} if options.data else {}
    )
    searcher = Searcher.open(project)
    ids = sorted(searcher.collection.video_ids())
    queries = [ids[number % len(ids)] for number in range(options.requests)]
    wanted = SearchOptions(top=TOP, segments=False)
    times = []
    searcher.search_id(queries[0], wanted)  # opens what is opened once
    for query in queries:
        start = time.perf_counter()
        searcher.search_id(query, wanted)
        times.append(time.perf_counter() - start)

    rows = [row("no service", 1, times, sum(times))]

    with ExitStack() as running:
        addresses = {
            workers: running.enter_context(
                serving(options.config, project.config.data_root, workers)
            )
            for workers in options.workers
        }
        for workers, address in addresses.items():
            for _ in range(2 * workers):
                measured(address, queries[: 2 * workers], 2 * workers)  # each process has searched

        # The services take turns, so that other load on the machine affects all of them.
        for clients in options.clients:
            for workers, address in addresses.items():
                times, wall = measured(address, queries, clients)
                rows.append(row(f"serve --workers {workers}", clients, times, wall))

    alone_ms = {each["way"]: each["p99 ms"] for each in reversed(rows)}
    for each in rows:
        each["p99 over one client"] = each["p99 ms"] / alone_ms[each["way"]]
    show(rows)


if __name__ == "__main__":
    main()
