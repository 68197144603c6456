"""The index of frames at size: recall, processor time, bytes and memory, beside FAISS.

    python -m bench.index_size --data DATA_ROOT --folder EMPTY_FOLDER [--videos 10000] [--frames 60]
    [--bits 3 1] [--refine 0 4] [--lists 16 64] [--queries 40] [--clients 1 8]

Draws a collection from the frame vectors of a real one, whose index is in DATA_ROOT, see
`bench.drawn_videos`. Queries are drawn videos with more noise, half of them real clips, half
scenes of their own.

Recall is that of the shortlist of 100 candidates: `copies`, the part of the videos drawn from the
clip of the query that are in it, over that of exhaustive search; `overlap`, the part of the
candidates of exhaustive search. FAISS is compared if it is installed; it is not a dependency.
"""

import importlib
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.drawn_videos import REAL_RATE, DrawnVideos, Floats, StoredVideos, drawn_from, stored
from bench.table import parse, show
from hapvr.data.filesystem import DataRoot
from hapvr.search.frame_index import VECTOR, read_state
from hapvr.search.hashes import FOUND_FRAMES
from hapvr.search.lance_index import LanceIndex
from hapvr.search.lance_upkeep import LIST_ROWS
from hapvr.search.votes import vote
from hapvr.settings import IndexSettings

Search = Callable[[Floats], pa.Table]
"""Query frames [Q, D] to FOUND_FRAMES."""

QUERY_NOISE = 0.75
HITS = 100
CANDIDATES = 100


def name_of(number: int) -> str:
    """The id of a drawn video."""
    return f"drawn/{number:08d}"


def fill(index: LanceIndex, videos: StoredVideos) -> None:
    """Store the frames, a shard for each chunk."""
    num_frames = videos.vectors.shape[1]
    for first, vectors in videos.chunks():
        values = vectors.astype(np.float16).reshape(-1)
        numbers = np.repeat(np.arange(first, first + len(vectors)), num_frames)
        rows = pa.table(
            {
                "video_id": [name_of(number) for number in numbers.tolist()],
                "second": np.tile(np.arange(num_frames, dtype=np.float32), len(vectors)),
                "hash": np.zeros(len(numbers), np.uint64),
                VECTOR: pa.FixedSizeListArray.from_arrays(pa.array(values), vectors.shape[2]),
            }
        )
        index.replace_shard(f"shard-{first:08d}", rows, digest=str(first))


def found_frames(rows: npt.NDArray[np.intp], similarities: Floats, num_frames: int) -> pa.Table:
    """FOUND_FRAMES of row numbers [Q, K] of the drawn frames."""
    numbers = rows.reshape(-1)
    query_frames = np.repeat(np.arange(len(rows), dtype=np.int32), rows.shape[1])
    names = [name_of(number) for number in (numbers // num_frames).tolist()]
    seconds = (numbers % num_frames).astype(np.float32)
    values = similarities.reshape(-1).astype(np.float32)
    return pa.table([query_frames, names, seconds, values], schema=FOUND_FRAMES)


def exhaustive(videos: StoredVideos, queries: Sequence[Floats]) -> list[pa.Table]:
    """The nearest frames of each query by comparison with all."""
    num_frames = videos.vectors.shape[1]
    every = np.concatenate(queries)
    best = np.full((len(every), HITS), -np.inf, np.float32)
    rows = np.zeros((len(every), HITS), np.intp)
    for first, vectors in videos.chunks():
        similarities = every @ vectors.reshape(-1, vectors.shape[2]).T
        places = np.argpartition(similarities, -HITS, axis=1)[:, -HITS:]
        joined = np.hstack([best, np.take_along_axis(similarities, places, 1)])
        joined_rows = np.hstack([rows, first * num_frames + places])
        kept = np.argpartition(joined, -HITS, axis=1)[:, -HITS:]
        best = np.take_along_axis(joined, kept, 1)
        rows = np.take_along_axis(joined_rows, kept, 1)

    parts = range(0, len(every), num_frames)
    return [
        found_frames(rows[part : part + num_frames], best[part : part + num_frames], num_frames)
        for part in parts
    ]


def shortlist(hits: pa.Table, num_videos: int, num_frames: int) -> list[str]:
    """The candidates that the hits of a query vote for."""
    voted = vote(
        hits,
        np.arange(num_frames),
        num_videos=num_videos,
        tolerance_s=1.0,
        num_hits=HITS,
        max_candidates=CANDIDATES,
    )
    return [candidate.video_id for candidate in voted]


@dataclass(frozen=True)
class Trial:
    """Queries, and the results of exhaustive search for them."""

    videos: StoredVideos
    numbers: npt.NDArray[np.intp]
    """[Q], of the drawn videos that the queries are"""
    queries: list[Floats]
    exact: list[list[str]]
    """the shortlist of each"""

    def run(self, search: Search, clients: Sequence[int]) -> dict[str, Any]:
        """Recall, and times of a search, with so many clients at once."""
        num_videos, num_frames, _ = self.videos.vectors.shape

        def timed(query: Floats) -> tuple[list[str], float]:
            start = time.perf_counter()
            names = shortlist(search(query), num_videos, num_frames)
            return names, time.perf_counter() - start

        timed(self.queries[0])  # opens what is opened once
        row: dict[str, Any] = {}
        answers: list[list[str]] = []
        for count in clients:
            used = time.process_time()
            with ThreadPoolExecutor(count) as pool:
                measured = list(pool.map(timed, self.queries))
            used = time.process_time() - used
            seconds = [second for _, second in measured]
            row[f"processor s, {count}"] = used / len(self.queries)
            row[f"p50 s, {count}"] = float(np.quantile(seconds, 0.5))
            row[f"p99 s, {count}"] = float(np.quantile(seconds, 0.99))
            answers = [names for names, _ in measured]

        return {"copies": self._copies(answers), "overlap": self._overlap(answers)} | row

    def _copies(self, answers: Sequence[Sequence[str]]) -> float:
        """Recall of the videos drawn from a query's clip, over that of exhaustive search."""
        return self._num_copies(answers) / self._num_copies(self.exact)

    def _num_copies(self, answers: Sequence[Sequence[str]]) -> int:
        total = 0
        for number, names in zip(self.numbers.tolist(), answers, strict=True):
            clip = self.videos.clip_of[number]
            copies = {number}
            if clip >= 0:
                copies = set(np.flatnonzero(self.videos.clip_of == clip).tolist())
            total += len(copies & {int(name.removeprefix("drawn/")) for name in names})

        return total

    def _overlap(self, answers: Sequence[Sequence[str]]) -> float:
        """The mean part of the candidates of exhaustive search."""
        pairs = zip(self.exact, answers, strict=True)
        return float(np.mean([len(set(exact) & set(names)) / len(exact) for exact, names in pairs]))


def trial_of(drawn: DrawnVideos, videos: StoredVideos, num_queries: int) -> Trial:
    """Queries that are spread over the collection, half of them real clips."""
    num_videos, num_frames, _ = videos.vectors.shape
    numbers = np.linspace(0, num_videos - 1, num_queries).astype(int) // REAL_RATE * REAL_RATE
    numbers[1::2] += 1
    rng = np.random.default_rng(1)
    queries = [
        drawn.noisy(videos.vectors[number].astype(np.float32), QUERY_NOISE, rng)
        for number in numbers
    ]
    exact = [shortlist(hits, num_videos, num_frames) for hits in exhaustive(videos, queries)]
    return Trial(videos, numbers, queries, exact)


def index_bytes(folder: Path) -> int:
    """Of the codes and lists of an index, without the stored vectors."""
    files = read_state(DataRoot(folder)).files
    return sum(os.path.getsize(folder / name) for name in files if "_indices" in name)


def lance_rows(options: Any, trial: Trial) -> Iterator[dict[str, Any]]:
    """A row for each kind of code, number of lists and factor of re-ranking."""
    folder = options.folder / "index"
    dims = trial.videos.vectors.shape[2]
    num_rows = trial.videos.vectors.size // dims
    fill(LanceIndex.create(folder, dims, {}, IndexSettings()), trial.videos)
    for bits in options.bits:
        start = time.process_time()
        LanceIndex(folder, IndexSettings(code_bits=bits)).optimise(rebuild=True)
        built = time.process_time() - start
        for lists in options.lists:
            for refine in options.refine:
                settings = IndexSettings(probed_lists=lists, refine_factor=refine)
                index = LanceIndex(folder, settings)
                row = {"index": f"Lance, {bits} bits", "lists": lists, "re-ranked": refine}
                row |= {"bytes": index_bytes(folder) / num_rows, "build processor s": built}
                row |= trial.run(partial(index.search_frames, k=HITS), options.clients)
                yield row | {"peak GB": peak_gb()}


def faiss_rows(options: Any, trial: Trial) -> Iterator[dict[str, Any]]:
    """The same with FAISS in memory: RaBitQ codes of one bit, with re-ranking, and of 8 bits."""
    try:
        faiss = importlib.import_module("faiss")
    except ImportError:
        return

    videos = trial.videos
    num_videos, num_frames, dims = videos.vectors.shape
    every = videos.vectors.reshape(-1, dims)
    num_lists = max(len(every) // LIST_ROWS, 1)
    sample = np.random.default_rng(2).choice(num_videos, min(num_lists * 2, num_videos), False)
    faiss.omp_set_num_threads(1)
    for codes, refine in (("RaBitQ", max(options.refine)), ("SQ8", 0)):
        start = time.process_time()
        metric = faiss.METRIC_INNER_PRODUCT
        index = faiss.index_factory(dims, f"IVF{num_lists},{codes}", metric)
        index.train(videos.vectors[np.sort(sample)].reshape(-1, dims).astype(np.float32))
        for _, vectors in videos.chunks():
            index.add(vectors.reshape(-1, dims))
        built = time.process_time() - start
        for lists in options.lists:
            index.nprobe = lists

            def search(query: Floats, index: Any = index, refine: int = refine) -> pa.Table:
                similarities, rows = index.search(query, HITS * max(refine, 1))
                if refine:
                    similarities, rows = reranked(every, query, rows)
                return found_frames(rows, similarities, num_frames)

            row = {"index": f"FAISS, {codes}", "lists": lists, "re-ranked": refine}
            row |= {"bytes": index.sa_code_size() + 8, "build processor s": built}
            yield row | trial.run(search, options.clients) | {"peak GB": peak_gb()}


def reranked(
    every: npt.NDArray[np.float16], query: Floats, rows: npt.NDArray[np.intp]
) -> tuple[Floats, npt.NDArray[np.intp]]:
    """The HITS nearest of the rows [Q, K], by their stored vectors."""
    numbers, places = np.unique(rows.clip(0), return_inverse=True)
    cosines = query @ every[numbers].astype(np.float32).T
    similarities = np.take_along_axis(cosines, places.reshape(rows.shape), 1)
    similarities[rows < 0] = -1
    kept = np.argsort(-similarities, axis=1)[:, :HITS]
    return np.take_along_axis(similarities, kept, 1), np.take_along_axis(rows, kept, 1)


def peak_gb() -> float:
    """The most memory that this process has had; mapped files count."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    options = parse(
        __doc__,
        data="",
        folder=Path("index-size"),
        videos=10_000,
        frames=60,
        queries=40,
        bits=(3, 1),
        refine=(0, 4),
        lists=(16, 64),
        clients=(1, 8),
    )
    options.folder.mkdir(parents=True, exist_ok=True)
    drawn = drawn_from(options.data, options.frames)
    videos = stored(drawn, options.folder / "vectors.npy", options.videos)
    trial = trial_of(drawn, videos, options.queries)
    rows = []
    for row in chain(lance_rows(options, trial), faiss_rows(options, trial)):
        rows.append(row)
        sys.stderr.write(f"{row}\n")  # a run takes hours

    show(rows)


if __name__ == "__main__":
    main()
