"""How long does a search take among 100,000 videos? Index and network, with synthetic videos.

    python -m bench.search_scale --features DATA_ROOT --folder FOLDER [--videos 100000] [--frames 100] [--queries 6]
                                 [--query-frames 100] [--rounds 3] [--engine torch] [--parts fill build ask add ask_added]

As in `bench.search_engines`, each video runs through the stored frames of a real clip, moved by random vectors. Its
regions, which the network compares, are its descriptors moved a little more. The network is the default one, untrained, in
torch or ONNX Runtime: its times are those of a trained one. Half of a query, or less where videos are that short, is a
video of the collection, moved further, and the rest are frames of another clip; it is "decoded", so the frozen networks take
no part. Each part of the work is a process of its
own with two threads:

    fill        takes in all shards
    build       the lists and codes of the index
    ask         shortlist, and fine scores of as many videos as there may be candidates, for each query: `--rounds` times, of
                which the first warms up; how many of the exact nearest frames the index finds
    add         one more shard of 512 videos
    ask_added   as `ask` without the exact frames, with that shard beside the index

Prints a line of JSON for each part. The index stays in --folder for further runs with --parts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.search_engines import (
    DIMS,
    FRAME,
    HITS,
    SCENE,
    SHARD_VIDEOS,
    THREADS,
    in_process,
    lists,
    make_query,
    now,
    num_bytes,
    originals,
    real_clips,
    unit,
    usage,
)
from hapvr.config_file import load_config
from hapvr.features.backbone import Backbone, load_backbone
from hapvr.features.whitening import fit_whitening
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.scorer.networks import Networks
from hapvr.scorer.onnx_export import write_onnx
from hapvr.scorer.onnx_networks import ONNXNetworks
from hapvr.scorer.scorer import VideoScorer
from hapvr.scorer.segments import Clock
from hapvr.scorer.torch_networks import TorchNetworks
from hapvr.scorer.videos import SampledFeatures
from hapvr.search.engine import SearchEngine
from hapvr.search.fine import fine_scores
from hapvr.search.index import FrameIndex, SearchIndex
from hapvr.search.settings import IndexSettings, SearchSettings
from hapvr.search.vectors import VectorTable
from hapvr.search.votes import Candidate
from hapvr.seeding import numpy_rng, torch_rng
from hapvr.video.settings import SamplingConfig

REGIONS = 9
REGION = 0.3
"""Length of the random vectors by which the regions of a frame differ from its descriptor."""
NOISE = 20_000
"""Random vectors that frames are moved by; drawing new ones for each frame would take longer than the index."""
EXACT_EVERY = 10
"""Of the query frames; their exact neighbours are searched for, too."""
PARTS = ("fill", "build", "ask", "add", "ask_added")


class Maker:
    """Videos by their number, [frames, DIMS] each."""

    def __init__(self, features: Path, frames: int) -> None:
        self.clips, self.frames = real_clips(features), frames
        self._noise = FRAME * unit(numpy_rng("noise").standard_normal((NOISE, DIMS), np.float32))

    def video(self, number: int) -> npt.NDArray[np.float32]:
        rng = numpy_rng(number, "video")
        clip = self.clips[int(rng.integers(len(self.clips)))]
        there_and_back = np.concatenate([clip, clip[::-1]])
        start = int(rng.integers(len(clip)))
        rows = there_and_back[np.arange(start, start + self.frames) % len(there_and_back)]
        scene = (SCENE * unit(rng.standard_normal(DIMS, np.float32))).astype(np.float32)
        return unit(rows + scene + self._noise[rng.integers(NOISE, size=self.frames)])

    def shard(self, numbers: Sequence[int]) -> npt.NDArray[np.float32]:
        return np.concatenate([self.video(number) for number in numbers])

    def queries(self, videos: int, count: int, frames: int) -> tuple[list[int], list[npt.NDArray[np.float32]]]:
        """The videos that are asked for, and [frames, DIMS] of each query."""
        chosen = numpy_rng("queries").choice(videos, size=count, replace=False).tolist()
        return chosen, [make_query(self.clips, self.video(one), numpy_rng(one, "query"), frames) for one in chosen]


def regions_of(frames: npt.NDArray[np.float32], seed: int | str) -> npt.NDArray[np.float16]:
    """[T, REGIONS, DIMS] around descriptors [T, DIMS]."""
    moved = unit(numpy_rng(seed, "regions").standard_normal((len(frames), REGIONS, DIMS), np.float32))
    return unit(frames[:, None] + REGION * moved).astype(np.float16)


def clock(frames: int) -> Clock:
    return Clock(tuple(float(second) for second in range(frames)))


class MadeVideos:
    """The videos of `hapvr.search.fine`: made when they are first read, and kept until `forget`."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._kept: dict[str, npt.NDArray[np.float16]] = {}

    def times(self, video_id: str) -> Sequence[float]:
        return clock(self._maker.frames).times_s

    def read(self, video_id: str, times_s: Sequence[float], first: int, last: int) -> SampledFeatures:
        if video_id not in self._kept:
            self._kept[video_id] = regions_of(self._maker.video(int(video_id)), video_id)
        return SampledFeatures(self._kept[video_id][first:last], Clock(tuple(times_s[first:last])))

    def forget(self) -> None:
        self._kept.clear()


def fill_up(listed: Sequence[Candidate], count: int) -> list[Candidate]:
    """So many candidates: those of the shortlist, and other videos to be compared whole."""
    names = {candidate.video_id for candidate in listed}
    others = [str(number) for number in range(2 * count) if str(number) not in names]
    return [*listed, *(Candidate(video_id=name, votes=0.0, windows=()) for name in others)][:count]


def shard_tables(names: Sequence[int], rows: npt.NDArray[np.float16], frames: int) -> tuple[pa.Table, pa.Table]:
    """Frames and videos of a shard."""
    ids = np.asarray(names)
    means = unit(rows.reshape(len(ids), frames, DIMS).astype(np.float32).mean(axis=1))

    def table(repeats: int, vectors: npt.NDArray[np.float16], **columns: pa.Array) -> pa.Table:
        return pa.table(
            {"video_id": pa.array(ids.repeat(repeats)).cast(pa.string()), **columns, "vector": lists(vectors)}
        )

    return (
        table(frames, rows, second=pa.array(np.tile(np.arange(frames), len(ids)), pa.float32())),
        table(1, means.astype(np.float16)),
    )


def fill(folder: Path, features: Path, videos: int, frames: int) -> dict[str, Any]:
    maker = Maker(features, frames)
    index = FrameIndex.create(folder / "index", DIMS, {}, settings=IndexSettings())
    seconds = processor_seconds = 0.0
    for start in range(0, videos, SHARD_VIDEOS):
        names = range(start, min(start + SHARD_VIDEOS, videos))
        made = maker.shard(names)
        tables = shard_tables(names, made.astype(np.float16), frames)
        began = now()
        index.replace_shard(f"s{start:07d}", *tables)
        seconds += time.perf_counter() - began[0]
        processor_seconds += time.process_time() - began[1]
        sys.stderr.write(f"{start + len(names)} videos, {processor_seconds:.1f} processor seconds\n")
    return {"rows": videos * frames, "seconds": seconds, "processor_seconds": processor_seconds} | memory()


def build(folder: Path) -> dict[str, Any]:
    began = now()
    index = FrameIndex.open(folder / "index", settings=IndexSettings())
    index.optimise(rebuild=True)
    return usage(began) | {
        "bytes": num_bytes(folder / "index"),
        "bytes_of_codes": num_bytes(folder / "index" / "frames.lance" / "_indices"),
    }


def add(folder: Path, features: Path, videos: int, frames: int) -> dict[str, Any]:
    names = range(videos, videos + SHARD_VIDEOS)
    made = Maker(features, frames).shard(names).astype(np.float16)
    tables = shard_tables(names, made, frames)
    began = now()
    index = FrameIndex.open(folder / "index", settings=IndexSettings())
    index.replace_shard("added", *tables)
    index.optimise()
    status = index.status()
    return usage(began) | {"parts": status.parts, "unindexed": status.unindexed_frames}


def networks_of(engine: str, backbone: Backbone, folder: Path, *, dtype: str) -> Networks:
    """The default network, untrained, and this backbone. engine: `torch` or `onnx`, whose files lie in `folder`; dtype: of
    torch's comparisons."""
    import torch

    network = SimilarityNetwork(NetworkSettings(), dims=DIMS, generator=torch_rng("search")).eval()
    channels = backbone.regions(torch.zeros(1, 3, backbone.crop_px, backbone.crop_px, dtype=torch.uint8)).shape[-1]
    sample = numpy_rng("sample").standard_normal((2000, channels), np.float32)
    whitening = fit_whitening(torch.from_numpy(sample), dims=DIMS)
    if engine == "torch":
        return TorchNetworks(
            backbone=backbone, whitening=whitening, network=network, device="cpu", dtype=getattr(torch, dtype)
        )
    videos = [torch.from_numpy(numpy_rng(seed).standard_normal((20, REGIONS, DIMS), np.float32)) for seed in "ab"]
    features = [torch.nn.functional.normalize(video, dim=-1) for video in videos]
    record = write_onnx(folder, backbone=backbone, whitening=whitening, network=network, frames=[], features=features)
    return ONNXNetworks(folder, record, num_threads=THREADS)


def ask(
    folder: Path,
    features: Path,
    videos: int,
    frames: int,
    queries: int,
    query_frames: int,
    rounds: int,
    changes: str,
    engine: str,
    exact: bool,
) -> dict[str, Any]:
    import torch

    torch.set_num_threads(THREADS)
    maker = Maker(features, frames)
    chosen, made = maker.queries(videos, queries, query_frames)
    settings = SearchSettings.model_validate(json.loads(changes))
    backbone = load_backbone(load_config(Path("configs/demo.yaml")).backbone)
    scorer = VideoScorer(
        networks=networks_of(engine, backbone, folder / "network", dtype=settings.dtype),
        sampling=SamplingConfig(),
        crop_px=backbone.crop_px,
        batch_frames=32,
        description={},
    )
    library = MadeVideos(maker)
    empty_gb = resident_gb()
    search = SearchEngine(
        scorer=scorer,
        index=FrameIndex.open(folder / "index", settings=settings.index),
        videos=library,
        num_videos=videos,
        blank=np.zeros((0, 0), np.float32),
        settings=settings,
    )
    times: dict[str, list[float]] = {
        name: [] for name in ("first", "shortlist", "shortlist_processor", "fine", "fine_processor")
    }
    found = []
    for number, rows in enumerate(made):
        query = scorer.embed(SampledFeatures(regions_of(rows, number), clock(len(rows))))
        for turn in range(rounds):
            began = now()
            listed = search.shortlist(query)
            taken = usage(began)
            filled = fill_up(listed, settings.candidates)
            began = now()
            fine_scores(query, filled, scorer=scorer, videos=library)
            scored = usage(began)
            if not turn:
                times["first"].append(taken["seconds"])
                continue
            for name, part in (("shortlist", taken), ("fine", scored)):
                times[name].append(part["seconds"])
                times[f"{name}_processor"].append(part["processor_seconds"])
        found.append([int(candidate.video_id) for candidate in listed])
        library.forget()
    recall = exact_recall(folder, search.index, np.concatenate(made)[::EXACT_EVERY]) if exact else {}
    return {
        **{name: [round(float(np.quantile(values, q)), 3) for q in (0.0, 0.5, 1.0)] for name, values in times.items()},
        **recall,
        "candidates": round(float(np.mean([len(names) for names in found])), 1),
        "originals": originals(chosen, found),
        "without_index_gb": empty_gb,
    } | memory()


def exact_recall(folder: Path, index: SearchIndex, queries: npt.NDArray[np.float32]) -> dict[str, float]:
    """What part of the frames that are nearest by comparison with all of them the index finds."""
    columns = ["query_frame", "video_id", "second"]
    table = VectorTable.open(str(folder / "index" / "frames.lance"), None, settings=IndexSettings())
    numbers, _, exact = table.nearest(queries, HITS, columns[1:], exact=True)
    found = index.search_frames(queries, HITS)
    wanted = set(zip(numbers.tolist(), *(exact[name].to_pylist() for name in columns[1:]), strict=True))
    got = set(zip(*(found[name].to_pylist() for name in columns), strict=True))
    return {"recall": round(len(wanted & got) / len(wanted), 4)}


def memory() -> dict[str, float]:
    return {"max_resident_gb": usage(now())["max_resident_gb"], "resident_gb": resident_gb()}


def resident_gb() -> float:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return round(int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1e6, 2)


def main(arguments: Sequence[str]) -> None:
    """Measures and prints lines of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=Path, required=True, help="a data root with features of real clips")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--videos", type=int, default=100_000)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--queries", type=int, default=6)
    parser.add_argument("--query-frames", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settings", default="{}", help="of the section `search`, as JSON")
    parser.add_argument("--engine", choices=("torch", "onnx"), default="torch", help="of the fine scores")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args(arguments)
    folder, features, videos, frames = options.folder, options.features, options.videos, options.frames
    folder.mkdir(parents=True, exist_ok=True)
    size = (folder, features, videos, frames)
    asked = ("ask", *size, options.queries, options.query_frames, options.rounds, options.settings, options.engine)
    work: dict[str, tuple[Any, ...]] = {
        "fill": ("fill", folder, features, videos, frames),
        "build": ("build", folder),
        "ask": (*asked, True),
        "add": ("add", folder, features, videos, frames),
        "ask_added": (*asked, False),
    }
    for part in options.parts:
        sys.stdout.write(json.dumps({part: in_process("bench.search_scale", *work[part])}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
