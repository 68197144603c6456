"""The scoring engine against a plain PyTorch implementation of the same score, and against the
matrix-product rate.

    python -m bench.scoring [--frames 60 108 200] [--videos 24] [--rounds 5] [--device cpu|cuda]
    [--threads N]

--videos: queries, and as many references. The plain implementation is written from the equations,
one pair of videos at a time: attention, einsum, maximum, mean, convolutions, maximum, mean (HAP-VR
section 3.3.1; with the paper's rates and 9 regions the top-k means are maxima at these lengths, and
it checks that they are). It starts from features, as a function of two videos does.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.plain_step import attend, compare, frame_similarity
from bench.table import parse, ratio, show, take_turns
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.seeding import torch_rng

REGIONS = 9
DIMS = 512


def plain_similarity(query: Tensor, reference: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """Video similarity [] of one pair of embeddings [T, R, D], from the equations."""
    rows = compare(frame_similarity(query, reference), weights).clamp(-1, 1)
    num_best = max(round(0.03 * rows.shape[1]), 1)
    best = (
        rows.max(dim=1).values if num_best == 1 else rows.topk(num_best, dim=1).values.mean(dim=1)
    )
    return best.mean()


def make_network(device: torch.device) -> SimilarityNetwork:
    """Seeded weights, scaled so that a video scores 0.9 with itself: untrained scores are too small
    to differ."""
    network = SimilarityNetwork(
        NetworkSettings(), dims=DIMS, generator=torch_rng(0, "network")
    ).eval()
    video = F.normalize(torch.randn(40, REGIONS, DIMS, generator=torch_rng("self")), dim=-1)
    assert network.comparator is not None
    with torch.no_grad():
        weights = network.state_dict()
        embedded = attend(video, weights)
        network.comparator.output.weight *= 0.9 / plain_similarity(embedded, embedded, weights)

    return network.to(device)


def measure(
    num_frames: int, *, num_videos: int, rounds: int, device: torch.device
) -> list[dict[str, Any]]:
    """A row per implementation for videos of `num_frames` frames."""
    network = make_network(device)
    weights = network.state_dict()
    rng = torch_rng(num_frames, "features")
    videos = F.normalize(
        torch.randn(2 * num_videos, num_frames, REGIONS, DIMS, generator=rng), dim=-1
    )
    queries = videos[:num_videos]
    references = videos[num_videos:]
    # related pairs score otherwise than unrelated ones: every third reference is a noisy copy of a
    # query
    noise = torch.randn(queries[::3].shape, generator=rng) * DIMS**-0.5
    references[::3] = F.normalize(queries[::3] + noise, dim=-1)
    queries = queries.to(device)
    references = references.to(device)

    def plain() -> Tensor:
        rows = [
            [
                plain_similarity(attend(query, weights), attend(reference, weights), weights)
                for reference in references
            ]
            for query in queries[:2]
        ]
        return torch.tensor(rows)

    def engine() -> Tensor:
        embedded = [[network.embed(video) for video in part] for part in (queries, references)]
        return network.score_videos(*embedded)

    left = queries[0].flatten(0, 1)
    right = references[0].flatten(0, 1).T.contiguous()
    works: dict[str, Callable[[], object]] = {
        "plain": plain,
        "ours": engine,
        "matmul": lambda: left @ right,
    }
    with torch.inference_mode():
        difference = {"ours": float((engine()[:2].cpu() - plain()).abs().max())}
        times = take_turns(works, rounds=rounds, device=device)

    num_pairs = {"plain": 2 * num_videos, "ours": num_videos**2}
    per_pair = {
        name: [one / num_pairs.get(name, 1) for one in found] for name, found in times.items()
    }
    return [
        {
            "frames": num_frames,
            "engine": name,
            "ms per pair": 1e3 * min(per_pair[name]),
            "speedup over plain": ratio(per_pair["plain"], per_pair[name]),
            "share of matmul rate": ratio(per_pair["matmul"], per_pair[name])
            if name == "ours"
            else "",
            "largest difference": difference.get(name, ""),
        }
        for name in num_pairs
    ]


def main() -> None:
    """Measures and prints a table."""
    threads = torch.get_num_threads()
    options = parse(
        __doc__, frames=(60, 108, 200), videos=24, rounds=5, device="cpu", threads=threads
    )
    device = torch.device(options.device)
    rows = [
        measure(count, num_videos=options.videos, rounds=options.rounds, device=device)
        for count in options.frames
    ]
    show([row for part in rows for row in part])


if __name__ == "__main__":
    main()
