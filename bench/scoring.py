"""The scoring engine against a plain PyTorch implementation of the same score, and against the matrix-product rate.

    python bench/scoring.py [--frames 60 108 200] [--videos 24] [--rounds 5] [--device cpu|cuda] [--threads N]

The plain implementation is written from the equations, one pair of videos at a time: attention, einsum, maximum, mean,
convolutions, maximum, mean (HAP-VR section 3.3.1; with the paper's rates and 9 regions the top-k means are maxima at
these lengths, and it checks that they are). Two times are given for it: `plain` starts from features as a function of
two videos does, `plain_embedded` leaves the attention out of the time. Every round times everything once, in turn, and
ratios are medians over rounds, so that other load on the machine meets all of them alike. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.model.network import SimilarityNetwork
from hapvr.model.packed import Limits, PackedVideos
from hapvr.model.pairwise import score_packed
from hapvr.model.settings import NetworkSettings
from hapvr.seeding import torch_rng

REGIONS, DIMS = 9, 512


def attend(features: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """x <- sigmoid(u . tanh(W x + b)) x. features: [T, R, D]."""
    hidden = torch.tanh(features @ weights["attention.transform.weight"].T + weights["attention.transform.bias"])
    return features * torch.sigmoid(hidden @ weights["attention.context_vector.weight"].T)


def plain_similarity(query: Tensor, reference: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """Video similarity [] of one pair of embeddings [T, R, D], from the equations."""
    regions = torch.einsum("tid,sjd->tsij", query, reference)
    frame = regions.max(dim=3).values.mean(dim=2)
    hidden = frame[None, None]
    for layer in ("conv1", "conv2"):
        hidden = F.conv2d(hidden, weights[f"comparator.{layer}.weight"], weights[f"comparator.{layer}.bias"], padding=1)
        hidden = F.max_pool2d(F.relu(hidden), 2)
    hidden = F.relu(F.conv2d(hidden, weights["comparator.conv3.weight"], weights["comparator.conv3.bias"], padding=1))
    refined = F.conv2d(hidden, weights["comparator.output.weight"], weights["comparator.output.bias"])
    rows = refined[0, 0].clamp(-1, 1)
    num_best = max(round(0.03 * rows.shape[1]), 1)
    best = rows.max(dim=1).values if num_best == 1 else rows.topk(num_best, dim=1).values.mean(dim=1)
    return best.mean()


def seconds(work: Callable[[], object], *, device: torch.device) -> float:
    """Wall time of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def make_network(device: torch.device) -> SimilarityNetwork:
    """Seeded weights, scaled so that a video scores 0.9 with itself: untrained scores are too small to differ."""
    network = SimilarityNetwork(NetworkSettings(), dims=DIMS, generator=torch_rng(0, "network")).eval()
    video = F.normalize(torch.randn(40, REGIONS, DIMS, generator=torch_rng("self")), dim=-1)
    with torch.no_grad():
        weights = network.state_dict()
        embedded = attend(video, weights)
        network.comparator.output.weight *= 0.9 / plain_similarity(embedded, embedded, weights)
    return network.to(device)


def measure(num_frames: int, *, num_videos: int, rounds: int, device: torch.device) -> dict[str, object]:
    """Times per pair, ratios and score differences for videos of `num_frames` frames."""
    network = make_network(device)
    weights = network.state_dict()
    rng = torch_rng(num_frames, "features")
    videos = [
        F.normalize(torch.randn(num_frames, REGIONS, DIMS, generator=rng), dim=-1).to(device)
        for _ in range(2 * num_videos)
    ]
    queries, references = videos[:num_videos], videos[num_videos:]
    # related pairs score otherwise than unrelated ones: every third reference is a noisy copy of a query
    for index in range(0, num_videos, 3):
        noise = torch.randn(queries[index].shape, generator=rng).to(device) * DIMS**-0.5
        references[index] = F.normalize(queries[index] + noise, dim=-1)
    limits = Limits.for_device(device)

    def plain() -> Tensor:
        return torch.stack(
            [
                torch.stack(
                    [
                        plain_similarity(attend(query, weights), attend(reference, weights), weights)
                        for reference in references
                    ]
                )
                for query in queries[:2]
            ]
        )

    embedded = [attend(video, weights) for video in videos]

    def plain_embedded() -> Tensor:
        return torch.stack(
            [
                torch.stack([plain_similarity(query, reference, weights) for reference in embedded[num_videos:]])
                for query in embedded[:2]
            ]
        )

    def engine(dtype: torch.dtype) -> Tensor:
        stacks = [
            PackedVideos.from_videos([network.embed(video, dtype=dtype) for video in part])
            for part in (queries, references)
        ]
        return score_packed(network, *stacks, limits=limits, comparator=comparators[dtype])

    comparators = {dtype: network.comparator.in_dtype(dtype) for dtype in (torch.float32, torch.bfloat16)}
    rows = queries[0].reshape(-1, DIMS)
    columns = references[0].reshape(-1, DIMS).T.contiguous()
    works: dict[str, tuple[Callable[[], object], int]] = {
        "plain": (plain, 2 * num_videos),
        "plain_embedded": (plain_embedded, 2 * num_videos),
        "engine_float32": (lambda: engine(torch.float32), num_videos**2),
        "engine_bfloat16": (lambda: engine(torch.bfloat16), num_videos**2),
    }
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        left, right = rows.to(dtype), columns.to(dtype)
        works[f"matmul_{name}"] = (lambda left=left, right=right: left @ right, 1)
    with torch.inference_mode():
        exact = plain()
        differences = {
            name: float((engine(dtype)[:2] - exact).abs().max())
            for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
        }
        times: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(rounds):
            for name, (work, num_pairs) in works.items():
                times[name].append(seconds(work, device=device) / num_pairs)

    def ratio(slow: str, fast: str) -> float:
        return round(statistics.median(a / b for a, b in zip(times[slow], times[fast], strict=True)), 3)

    operations = 2 * (num_frames * REGIONS) ** 2 * DIMS
    return {
        "frames": num_frames,
        "milliseconds_per_pair": {name: round(1e3 * statistics.median(value), 3) for name, value in times.items()},
        "speedup_over_plain": {name: ratio("plain", f"engine_{name}") for name in differences},
        "speedup_over_plain_embedded": {name: ratio("plain_embedded", f"engine_{name}") for name in differences},
        "share_of_matmul_rate": {name: ratio(f"matmul_{name}", f"engine_{name}") for name in differences},
        "matmul_gflops": {name: round(operations / min(times[f"matmul_{name}"]) / 1e9, 1) for name in differences},
        "largest_score_difference": differences,
        "score_range": [round(float(exact.min()), 4), round(float(exact.max()), 4)],
    }


def main(arguments: Sequence[str]) -> None:
    """Measures and prints JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, nargs="+", default=[60, 108, 200])
    parser.add_argument("--videos", type=int, default=24, help="queries, and as many references")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="0 for torch's own choice")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    results = [
        measure(num_frames, num_videos=options.videos, rounds=options.rounds, device=device)
        for num_frames in options.frames
    ]
    machine = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }
    sys.stdout.write(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
