"""The search service under several clients at once, against the same searches in one process.

    python -m bench.service --config configs/demo.yaml [--data DIR] [--clients 1 8 32] [--requests
    200]

Starts `hapvr serve` on a free port of this machine; each client sends a search, of a video of the
collection, as soon as its last one was answered, until there were so many requests. The index of
the project must be there; --data: its data root, if it is not the configuration's.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
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
def serving(config: Path, data_root: str) -> Iterator[str]:
    """The address of a service of its own process."""
    run = "from hapvr.cli import main; main()"
    command = [sys.executable, "-c", run, "serve", "--config", str(config), "--port", "0", "--json"]
    command += ["--set", f"data_root={data_root}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["address"].rstrip("/")
        finally:
            process.terminate()


def ask(address: str, video_id: str, client: int = 0) -> float:
    """Seconds of one search; one that takes long is a job, which is asked for until it is done.
    client: each has an address of its own, since one has at most half of the places."""
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


def main() -> None:
    """Measures and prints a table."""
    options = parse(
        __doc__, config=Path("configs/demo.yaml"), data="", clients=(1, 8, 32), requests=200
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
    rows = [row("one process", 1, times, sum(times))]
    with serving(options.config, project.config.data_root) as address:
        ask(address, queries[0])
        for clients in options.clients:
            with ThreadPoolExecutor(clients) as pool:
                start = time.perf_counter()
                numbers = (number % clients for number in range(len(queries)))
                times = list(pool.map(partial(ask, address), queries, numbers))
                rows.append(row("service", clients, times, time.perf_counter() - start))
    for measured in rows:
        measured["p99 over one client"] = measured["p99 ms"] / rows[1]["p99 ms"]
    show(rows)


if __name__ == "__main__":
    main()
