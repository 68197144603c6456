"""Search engines on frame descriptors: Lance, which `hapvr.search` uses, and FAISS, against exact search.

    python -m bench.search_engines --features DATA_ROOT [--videos 20000] [--frames 100] [--queries 20] [--folder FOLDER]
                                   [--lance-alone]

The collection is made from the stored features of real clips: each video runs through the frames of one of them, and all
of its frames are moved by one random vector, as another scene would be, and each by a smaller one. A query is half a
video of the collection, moved further, and half frames of another clip. Each engine builds and searches in a process of
its own with two threads, so that its memory is its own. Candidates are the 100 videos with the largest sum, over the
query's frames, of their best hit among the 100 nearest frames. Lance takes in one more shard of 512 videos in the end.
Prints JSON. Wants `faiss-cpu` for the part of FAISS; `--lance-alone` leaves that out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hapvr.seeding import numpy_rng

DIMS = 512
HITS = 100
CANDIDATES = 100
SHARD_VIDEOS = 512
SCENE, FRAME, QUERY = 0.6, 0.2, 0.5
"""Lengths of the random vectors that move a video, a frame and a query; descriptors have length 1."""
THREADS = 2
LANCE = {
    "1 bit, 16 lists, refined 4 times": {"code_bits": 1, "probed_lists": 16, "refine_factor": 4},
    "1 bit, 32 lists, refined 4 times": {"code_bits": 1, "probed_lists": 32, "refine_factor": 4},
    "1 bit, 16 lists, not refined": {"code_bits": 1, "probed_lists": 16, "refine_factor": 1},
}
FAISS = {"SQ8": "IVF{lists},SQ8", "RaBitQ": "IVF{lists},RaBitQ"}


def unit(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32)


def real_clips(features: Path) -> list[npt.NDArray[np.float32]]:
    """[T, DIMS] descriptors of each clip with features, padded with zeros."""
    from hapvr.storage.features import FeatureStore
    from hapvr.storage.filesystem import DataRoot

    root = DataRoot(features)
    store = FeatureStore(root, root.list_folders("features"))
    clips = []
    for _, regions in store.read(sorted(store.available())):
        means = regions.float().mean(1).numpy()
        clips.append(unit(np.pad(means, ((0, 0), (0, DIMS - means.shape[1])))))
    return clips


def make_videos(
    clips: Sequence[npt.NDArray[np.float32]], numbers: Sequence[int], frames: int
) -> Iterator[npt.NDArray[np.float32]]:
    """[frames, DIMS] of each video."""
    for number in numbers:
        rng = numpy_rng(number, "video")
        clip = clips[int(rng.integers(len(clips)))]
        start = int(rng.integers(len(clip)))
        there_and_back = np.concatenate([clip, clip[::-1]])
        rows = there_and_back[np.arange(start, start + frames) % len(there_and_back)]
        yield unit(rows + SCENE * unit(rng.standard_normal(DIMS)) + FRAME * unit(rng.standard_normal((frames, DIMS))))


def make_query(
    clips: Sequence[npt.NDArray[np.float32]], original: npt.NDArray[np.float32], rng: np.random.Generator, frames: int
) -> npt.NDArray[np.float32]:
    """So many frames: of a video, moved, as many as make half of them, between frames of another clip."""
    other = clips[int(rng.integers(len(clips)))]
    rows = unit(other[np.arange(frames) % len(other)] + SCENE * unit(rng.standard_normal(DIMS)))
    copied = min(frames // 2, len(original))
    first, start = (len(original) - copied) // 2, (frames - copied) // 2
    rows[start : start + copied] = original[first : first + copied]
    return unit(rows + QUERY * unit(rng.standard_normal((frames, DIMS))))


def candidates(
    numbers: npt.NDArray[Any], similarities: npt.NDArray[np.floating], videos: npt.NDArray[np.int64]
) -> list[int]:
    """The videos with the largest sum of best hits. numbers, similarities, videos: of the hits, query frame by frame."""
    best: dict[tuple[int, int], float] = {}
    for number, similarity, video in zip(numbers.tolist(), similarities.tolist(), videos.tolist(), strict=True):
        best[number, video] = max(best.get((number, video), 0.0), similarity)
    sums: dict[int, float] = {}
    for (_, video), similarity in best.items():
        sums[video] = sums.get(video, 0.0) + similarity
    return sorted(sums, key=lambda video: -sums[video])[:CANDIDATES]


def exact(library: npt.NDArray[np.float16], queries: Sequence[npt.NDArray[np.float32]], frames: int) -> list[list[int]]:
    """Candidates of each query by comparison with every frame."""
    stacked = np.concatenate(queries)
    best = np.full((len(stacked), HITS), -np.inf, np.float32)
    rows = np.zeros((len(stacked), HITS), np.int64)
    for start in range(0, len(library), 50_000):
        found = stacked @ library[start : start + 50_000].astype(np.float32).T
        near = np.argpartition(-found, HITS, axis=1)[:, :HITS]
        both = np.concatenate([best, np.take_along_axis(found, near, 1)], axis=1)
        places = np.concatenate([rows, near + start], axis=1)
        keep = np.argpartition(-both, HITS, axis=1)[:, :HITS]
        best, rows = np.take_along_axis(both, keep, 1), np.take_along_axis(places, keep, 1)
    numbers = np.repeat(np.arange(frames), HITS)
    return [
        candidates(
            numbers, best[place : place + frames].reshape(-1), rows[place : place + frames].reshape(-1) // frames
        )
        for place in range(0, len(stacked), frames)
    ]


def usage(began: tuple[float, float]) -> dict[str, float]:
    """Seconds since `began`, by the clock and of the processor, and the largest memory of this process so far."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    largest = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return {
        "seconds": round(time.perf_counter() - began[0], 2),
        "processor_seconds": round(time.process_time() - began[1], 2),
        "max_resident_gb": round(int(largest.split()[1]) / 1e6, 2),
    }


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def num_bytes(place: Path) -> int:
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files)


def build_lance(folder: Path, frames: int, list_rows: int) -> dict[str, Any]:
    import pyarrow as pa

    from hapvr.search import vectors
    from hapvr.search.index import FrameIndex
    from hapvr.search.settings import IndexSettings

    library = np.load(folder / "library.npy", mmap_mode="r")
    vectors.LIST_ROWS = list_rows
    settings = IndexSettings(**LANCE["1 bit, 16 lists, refined 4 times"])
    began = now()
    index = FrameIndex.create(folder / "lance", DIMS, {}, settings=settings)
    videos = len(library) // frames

    def take_in(names: npt.NDArray[np.int64], rows: npt.NDArray[np.float16]) -> None:
        index.replace_shard(
            f"s{names[0]:07d}",
            pa.table(
                {
                    "video_id": pa.array(np.repeat(names, frames)).cast(pa.string()),
                    "second": pa.array(np.tile(np.arange(frames), len(names)), pa.float32()),
                    "vector": lists(rows),
                }
            ),
            pa.table({"video_id": pa.array(names).cast(pa.string()), "vector": lists(rows[::frames])}),
        )

    for start in range(0, videos, SHARD_VIDEOS):
        stop = min(start + SHARD_VIDEOS, videos)
        take_in(np.arange(start, stop), library[start * frames : stop * frames])
    taken = usage(began)
    began = now()
    index.optimise(rebuild=True)
    built = usage(began)
    result = {
        "take_in": taken,
        "build": built,
        "bytes": num_bytes(folder / "lance"),
        "bytes_of_codes": num_bytes(folder / "lance" / "frames.lance" / "_indices"),
    }
    began = now()
    take_in(np.arange(videos, videos + SHARD_VIDEOS), library[-SHARD_VIDEOS * frames :][:, ::-1])
    index.optimise()
    return result | {"one_more_shard": usage(began)}


def lists(rows: npt.NDArray[np.float16]) -> Any:
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), DIMS)


def build_faiss(folder: Path, kind: str, num_lists: int) -> dict[str, Any]:
    import faiss

    faiss.omp_set_num_threads(THREADS)
    library = np.load(folder / "library.npy", mmap_mode="r")
    began = now()
    index = faiss.index_factory(DIMS, FAISS[kind].format(lists=num_lists), faiss.METRIC_INNER_PRODUCT)
    chosen = np.sort(numpy_rng("train").choice(len(library), size=min(64 * num_lists, len(library)), replace=False))
    index.train(library[chosen].astype(np.float32))
    for start in range(0, len(library), 100_000):
        index.add(library[start : start + 100_000].astype(np.float32))
    faiss.write_index(index, str(folder / f"{kind}.faiss"))
    return {"build": usage(began), "bytes": num_bytes(folder / f"{kind}.faiss")}


def search(folder: Path, find: Callable[[npt.NDArray[np.float32]], list[int]]) -> dict[str, Any]:
    """Times and candidates of all queries, after each was asked once."""
    queries = np.load(folder / "queries.npy")
    for query in queries:
        find(query)
    times, found = [], []
    for query in queries:
        began = now()
        found.append(find(query))
        times.append(usage(began))
    return {
        "seconds": round(float(np.median([row["seconds"] for row in times])), 3),
        "processor_seconds": round(float(np.median([row["processor_seconds"] for row in times])), 3),
        "max_resident_gb": times[-1]["max_resident_gb"],
        "candidates": found,
    }


def search_lance(folder: Path, options: str) -> dict[str, Any]:
    from hapvr.search.index import FrameIndex
    from hapvr.search.settings import IndexSettings

    index = FrameIndex.open(folder / "lance", settings=IndexSettings(**LANCE[options]))

    def find(query: npt.NDArray[np.float32]) -> list[int]:
        hits = index.search_frames(query, HITS)
        videos = hits["video_id"].to_numpy(zero_copy_only=False).astype(np.int64)
        return candidates(hits["query_frame"].to_numpy(), hits["similarity"].to_numpy(), videos)

    return search(folder, find)


def search_faiss(folder: Path, kind: str, frames: int, probes: int) -> dict[str, Any]:
    import faiss

    faiss.omp_set_num_threads(THREADS)
    index = faiss.read_index(str(folder / f"{kind}.faiss"))
    index.nprobe = probes

    def find(query: npt.NDArray[np.float32]) -> list[int]:
        similarities, rows = index.search(query, HITS)
        numbers = np.repeat(np.arange(len(query)), HITS)
        return candidates(numbers, similarities.reshape(-1), rows.reshape(-1) // frames)

    return search(folder, find)


def in_process(module: str, work: str, *arguments: object) -> dict[str, Any]:
    """What a function of a module answers in a process with THREADS threads."""
    call = f"{work}({', '.join(map(repr, arguments))})"
    code = f"import json; from pathlib import *; from {module} import *; print(json.dumps({call}))"
    names = ("OMP_NUM_THREADS", "LANCE_CPU_THREADS", "RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = os.environ | dict.fromkeys(names, str(THREADS))
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main(arguments: Sequence[str]) -> None:
    """Measures and prints JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=Path, required=True, help="a data root with features of real clips")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/hapvr-search-engines"))
    parser.add_argument("--videos", type=int, default=20_000)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--list-rows", type=int, default=4096)
    parser.add_argument("--probes", type=int, default=16)
    parser.add_argument("--lance-alone", action="store_true")
    options = parser.parse_args(arguments)
    folder, frames = options.folder, options.frames
    folder.mkdir(parents=True, exist_ok=True)
    clips = real_clips(options.features)
    library = np.lib.format.open_memmap(
        folder / "library.npy", mode="w+", dtype=np.float16, shape=(options.videos * frames, DIMS)
    )
    for number, rows in enumerate(make_videos(clips, range(options.videos), frames)):
        library[number * frames : (number + 1) * frames] = rows
    library.flush()
    chosen = numpy_rng("queries").choice(options.videos, size=options.queries, replace=False).tolist()
    queries = [
        make_query(clips, next(make_videos(clips, [number], frames)), numpy_rng(number, "query"), frames)
        for number in chosen
    ]
    np.save(folder / "queries.npy", np.stack(queries))
    began = now()
    wanted = exact(library, queries, frames)
    results: dict[str, Any] = {
        "rows": len(library),
        "clips": len(clips),
        "frames_of_clips": sum(map(len, clips)),
        "exact": usage(began) | {"originals": originals(chosen, wanted)},
    }
    num_lists = max(1, len(library) // options.list_rows)
    note(results)
    apart = partial(in_process, "bench.search_engines")
    results["lance"] = apart("build_lance", folder, frames, options.list_rows)
    for name in LANCE:
        results[f"lance, {name}"] = judged(apart("search_lance", folder, name), chosen, wanted)
        note(results)
    for kind in () if options.lance_alone else FAISS:
        results[f"faiss {kind}"] = apart("build_faiss", folder, kind, num_lists) | {
            "search": judged(apart("search_faiss", folder, kind, frames, options.probes), chosen, wanted)
        }
        note(results)
    sys.stdout.write(json.dumps(results, indent=1) + "\n")


def note(results: dict[str, Any]) -> None:
    """What is known so far, for whoever waits."""
    sys.stderr.write(json.dumps(results) + "\n")


def originals(chosen: Sequence[int], found: Sequence[Sequence[int]]) -> float:
    """Share of queries whose video is among the candidates."""
    return sum(number in names for number, names in zip(chosen, found, strict=True)) / len(chosen)


def judged(result: dict[str, Any], chosen: Sequence[int], wanted: Sequence[Sequence[int]]) -> dict[str, Any]:
    """With recall instead of candidates."""
    found = result.pop("candidates")
    shares = [len(set(a) & set(b)) / len(b) for a, b in zip(found, wanted, strict=True)]
    return result | {"recall": round(float(np.mean(shares)), 4), "originals": originals(chosen, found)}


if __name__ == "__main__":
    main(sys.argv[1:])
