"""Scoring of TCA's frames and of its video vectors against that of the region-level network, on the same pairs.

    python -m bench.families [--videos 24] [--frames 100] [--dims 512] [--rounds 5] [--threads 1]

Times what the scoring engine runs per pair of embedded videos: `packed_scorer` of the similarity network (9 regions per
frame, comparator included), of TCA at level `frame`, and of TCA at level `video`, whose cosines are of many more videos at
once because one of them takes no measurable time. Embedding is timed by itself, per video. Every round times all in
turn; times are processor seconds, ratios are medians over rounds. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from hapvr.model.families import build_family
from hapvr.model.family import VideoNetwork
from hapvr.model.packed import PackedVideos
from hapvr.model.settings import NetworkSettings
from hapvr.model.tca.settings import TcaSettings
from hapvr.seeding import torch_rng

REGIONS = 9
COSINE_VIDEOS = 4096
"""Queries and references of one product of video vectors."""

NETWORKS = {
    "similarity network": NetworkSettings(),
    "tca, frames": TcaSettings(level="frame"),
    "tca, cosine": TcaSettings(),
}


def processor_seconds(work: Callable[[], object]) -> float:
    """What one call costs this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(num_videos: int, num_frames: int, dims: int, rounds: int) -> dict[str, Any]:
    """Processor seconds per pair and per embedded video, and how many times as fast TCA is."""
    rng = torch_rng("families")
    videos = [F.normalize(torch.randn(num_frames, REGIONS, dims, generator=rng), dim=-1) for _ in range(num_videos)]
    networks: dict[str, VideoNetwork] = {
        name: build_family(settings, dims=dims, generator=torch_rng(name)).eval() for name, settings in NETWORKS.items()
    }
    packed: dict[str, PackedVideos] = {}
    embedding: dict[str, float] = {}
    with torch.inference_mode():
        for name, network in networks.items():
            network.embed(videos[0])
            start = time.process_time()
            packed[name] = network.pack([network.embed(video) for video in videos])
            embedding[name] = (time.process_time() - start) / num_videos
        vectors = F.normalize(torch.randn(COSINE_VIDEOS, 1, dims, generator=rng), dim=-1)
        packed["tca, cosine"] = PackedVideos.from_videos(list(vectors[:, None]))
        pairs = dict.fromkeys(networks, num_videos**2) | {"tca, cosine": COSINE_VIDEOS**2}
        scorers = {name: network.packed_scorer() for name, network in networks.items()}
        seconds: dict[str, list[float]] = {name: [] for name in networks}
        for _ in range(rounds + 1):
            for name, score in scorers.items():
                stack = packed[name]
                seconds[name].append(processor_seconds(lambda: score(stack, stack)) / pairs[name])  # noqa: B023
    slow = seconds["similarity network"][1:]
    return {
        "videos": num_videos,
        "frames": num_frames,
        "dims": dims,
        "seconds_per_pair": {name: statistics.median(values[1:]) for name, values in seconds.items()},
        "times_as_fast": {
            name: statistics.median(a / b for a, b in zip(slow, seconds[name][1:], strict=True))
            for name in networks
            if name != "similarity network"
        },
        "seconds_per_embedded_video": embedding,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--videos", type=int, default=24)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--dims", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sys.stdout.write(
        json.dumps(measure(arguments.videos, arguments.frames, arguments.dims, arguments.rounds), indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
