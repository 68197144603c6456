"""A training step against a plain implementation of it, and the paper's batch.

    python -m bench.training [--clips 32] [--frames 28] [--rounds 3] [--device cpu|cuda] [--threads
    N]

step: similarities and all losses, forward and backward, of `clips` clips with 9 regions of 512
values. The plain implementation is written from the equations: it computes each pair of clips by
itself, and each term of the objective by comparing all pairs of entries of a row. Memory growth is
how much the peak of the resident set rises during one step, in a process of its own for each
implementation.

paper: a step with the paper's batch (64 videos, two views, 28 frames), in float32 and in
bf16-mixed.
"""

import argparse
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.plain_step import plain_step
from bench.table import parse, ratio, show, take_turns
from hapvr.losses.objective import Objective
from hapvr.losses.settings import ObjectiveSettings
from hapvr.model.checkpoint import build_network
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.seeding import torch_rng
from hapvr.train.batch import Batch
from hapvr.train.similarity import TrainingModule

REGIONS = 9
DIMS = 512
MIB = 2**20
PAPER = (128, 28)
"""Clips and frames."""


def make_batch(
    num_clips: int, num_frames: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Regions, labels, frame labels and pairs: clips 2 k and 2 k + 1 are of one video, the second a
    noisy copy."""
    rng = torch_rng(num_clips, num_frames, "batch")
    weak = F.normalize(
        torch.randn(num_clips // 2, num_frames, REGIONS, DIMS, generator=rng), dim=-1
    )
    noise = torch.randn(weak.shape, generator=rng) * DIMS**-0.5
    regions = torch.stack([weak, F.normalize(weak + noise, dim=-1)], dim=1).flatten(0, 1)
    video = torch.arange(num_clips) // 2
    labels = torch.where(video[:, None] == video[None], 1, -1).to(torch.int8)
    pairs = (labels > 0).nonzero()
    frame_labels = torch.randint(
        -1, 2, (len(pairs), num_frames, num_frames), generator=rng, dtype=torch.int8
    )
    return regions.to(device), labels.to(device), frame_labels.to(device), pairs.to(device)


def batch_of(regions: Tensor, labels: Tensor, frame_labels: Tensor, pairs: Tensor) -> Batch:
    """The batch that a training step gets."""
    numbers = torch.arange(len(labels), device=labels.device)
    return Batch(
        regions=regions,
        labels=labels,
        frame_labels=frame_labels,
        pair_index=pairs,
        first_row=0,
        video_ids=tuple(str(number // 2) for number in range(len(labels))),
        source_ids=torch.stack([numbers // 2, torch.full_like(numbers, -1)], dim=1),
    )


def make_step(device: torch.device) -> TrainingModule:
    """The paper's network and objective with seeded weights."""
    network = build_network(NetworkSettings(), dims=DIMS, seed=0)
    assert isinstance(network, SimilarityNetwork)
    return TrainingModule(network, Objective(ObjectiveSettings())).to(device)


def run_step(
    name: str, num_clips: int, num_frames: int, device: torch.device, *, precision: str = "32-true"
) -> Callable[[], tuple[float, Tensor]]:
    """One step, forward and backward, of the implementation `ours` or `plain`; returns loss and all
    gradients."""
    batch = make_batch(num_clips, num_frames, device)
    step = make_step(device)

    def work() -> tuple[float, Tensor]:
        step.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed"):
            total = step(batch_of(*batch))[0] if name == "ours" else plain_step(step, *batch)
        total.backward()
        gradients = torch.cat(
            [
                parameter.grad.flatten()
                for parameter in step.parameters()
                if parameter.grad is not None
            ]
        )
        return float(total.detach()), gradients

    return work


def peak_growth_mib(
    name: str, num_clips: int, num_frames: int, device_name: str, threads: int
) -> float:
    """Memory of one step in this process, which has done nothing before; on a GPU of its
    allocator."""
    torch.set_num_threads(threads)
    device = torch.device(device_name)
    work = run_step(name, num_clips, num_frames, device)
    run_step(name, 4, num_frames, device)()  # libraries and their buffers are loaded now
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return (torch.cuda.max_memory_allocated(device) - before) / MIB

    Path("/proc/self/clear_refs").write_text(
        "5", encoding="ascii"
    )  # the peak is counted from here on
    before_mib = _status_mib("VmRSS")
    work()
    return _status_mib("VmHWM") - before_mib


def measure_step(options: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Times, agreement and memory of both implementations."""
    size = (options.clips, options.frames)
    works = {name: run_step(name, *size, device) for name in ("plain", "ours")}
    results = {name: work() for name, work in works.items()}
    times = take_turns(works, rounds=options.rounds, device=device)
    threads = torch.get_num_threads()
    memory = {
        name: in_own_process(peak_growth_mib, name, *size, options.device, threads)
        for name in works
    }
    gradients = results["plain"][1]
    return [
        {
            "step": name,
            "clips x frames": f"{size[0]} x {size[1]}",
            "seconds": min(times[name]),
            "speedup over plain": ratio(times["plain"], times[name]),
            "memory growth, MiB": memory[name],
            "share of plain's memory": memory[name] / max(memory["plain"], 1),
            "loss": results[name][0],
            "largest gradient difference": float((results[name][1] - gradients).abs().max()),
        }
        for name in works
    ]


def measure_paper(options: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """The paper's batch in both precisions."""
    works = {
        precision: run_step("ours", *PAPER, device, precision=precision)
        for precision in ("32-true", "bf16-mixed")
    }
    for work in works.values():
        work()
    times = take_turns(works, rounds=options.rounds, device=device)
    return [
        {
            "step": f"paper's batch, {precision}",
            "seconds": min(found),
            "speedup over 32-true": ratio(times["32-true"], found),
        }
        for precision, found in times.items()
    ]


def in_own_process(work: Callable[..., Any], *arguments: Any) -> Any:
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def _status_mib(name: str) -> float:
    """VmRSS, what is resident now, or VmHWM, the most that was. Wants Linux."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(name + ":")).split()[1]) / 1024


def main() -> None:
    """Measures and prints tables."""
    options = parse(
        __doc__, clips=32, frames=28, rounds=3, device="cpu", threads=torch.get_num_threads()
    )
    device = torch.device(options.device)
    show(measure_step(options, device))
    show(measure_paper(options, device))


if __name__ == "__main__":
    main()
