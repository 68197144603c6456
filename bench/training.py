"""A training step against a plain implementation of it, cached views against online ones, and the paper's batch.

    python -m bench.training [--parts step sources paper] [--clips 32] [--frames 28] [--rounds 3] [--device cpu|cuda]
        [--data-root DIR --config configs/demo.yaml] [--threads N]

step: similarities and all losses, forward and backward, of `clips` clips with 9 regions of 512 values. The plain
implementation is written from the equations: it computes each pair of clips by itself (attention, einsum, maximum, mean,
convolutions), and each term of the objective by comparing all pairs of entries of a row. Losses and gradients of both
must agree. Every round times both once, in turn; ratios are medians over rounds. Memory growth is how much the peak
of the resident set rises during one step, in a process of its own for each implementation.

sources: on a project's data (--config, --data-root: what `make demo` leaves), seconds per step from cached views and
from online ones, each with its own batch, and the share of time that a cached training waits for data.

paper: seconds and peak resident memory of a step with the paper's batch (64 videos, two views, 28 frames), in float32 and
in bf16-mixed.

Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.plain_step import plain_step
from hapvr.labels.pairs import positive_pairs
from hapvr.losses.objective import Objective
from hapvr.losses.settings import ObjectiveSettings
from hapvr.model.settings import NetworkSettings
from hapvr.seeding import torch_rng
from hapvr.train.batch import Batch
from hapvr.train.families import build_network
from hapvr.train.similarity import TrainingModule

REGIONS, DIMS = 9, 512
MIB = 2**20


def make_batch(num_clips: int, num_frames: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Regions, labels, frame labels and pairs: clips 2 k and 2 k + 1 are of one video, the second a noisy copy."""
    rng = torch_rng(num_clips, num_frames, "batch")
    weak = F.normalize(torch.randn(num_clips // 2, num_frames, REGIONS, DIMS, generator=rng), dim=-1)
    noise = torch.randn(weak.shape, generator=rng) * DIMS**-0.5
    regions = torch.stack([weak, F.normalize(weak + noise, dim=-1)], dim=1).flatten(0, 1)
    video = torch.arange(num_clips) // 2
    labels = torch.where(video[:, None] == video[None], 1, -1).to(torch.int8)
    pairs = positive_pairs(labels, include_self=True)
    frame_labels = torch.randint(-1, 2, (len(pairs), num_frames, num_frames), generator=rng, dtype=torch.int8)
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
        view_index=numbers % 2,
        source_ids=torch.stack([numbers // 2, torch.full_like(numbers, -1)], dim=1),
    )


def make_step(device: torch.device) -> TrainingModule:
    """The paper's network and objective with seeded weights."""
    network = build_network(NetworkSettings(), dims=DIMS, seed=0)
    return TrainingModule(network, Objective(ObjectiveSettings())).to(device)


def run_step(
    name: str, num_clips: int, num_frames: int, device: torch.device, *, precision: str = "32-true"
) -> Callable[[], tuple[float, Tensor]]:
    """One step, forward and backward, of the implementation `ours` or `plain`; returns loss and all gradients."""
    batch, step = make_batch(num_clips, num_frames, device), make_step(device)

    def work() -> tuple[float, Tensor]:
        step.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed"):
            total = step(batch_of(*batch))[0] if name == "ours" else plain_step(step, *batch)
        total.backward()
        gradients = torch.cat([parameter.grad.flatten() for parameter in step.parameters()])
        return float(total.detach()), gradients

    return work


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Wall time of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def peak_growth(name: str, num_clips: int, num_frames: int, device_name: str, threads: int) -> dict[str, float]:
    """Memory of one step in this process, which has done nothing before. MiB; on a GPU of its allocator."""
    torch.set_num_threads(threads)
    device = torch.device(device_name)
    work = run_step(name, num_clips, num_frames, device)
    warm_up = run_step(name, 4, num_frames, device)
    warm_up()  # libraries and their buffers are loaded now
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is counted from here on
    before = _status_mib("VmRSS")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) / MIB
    work()
    peak = torch.cuda.max_memory_allocated(device) / MIB if device.type == "cuda" else _status_mib("VmHWM")
    return {"before_mib": round(before), "peak_mib": round(peak), "growth_mib": round(peak - before)}


def measure_step(options: argparse.Namespace) -> dict[str, Any]:
    """Times, ratios, agreement and memory of a step."""
    device = torch.device(options.device)
    works = {name: run_step(name, options.clips, options.frames, device) for name in ("ours", "plain")}
    (loss, gradients), (plain_loss, plain_gradients) = works["ours"](), works["plain"]()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(options.rounds):
        for name, work in works.items():
            times[name].append(seconds(work, device))
    memory = {
        name: in_own_process(peak_growth, name, options.clips, options.frames, options.device, torch.get_num_threads())
        for name in works
    }
    # Forward products once, backward products for both sides.
    operations = 3 * 2 * (options.clips * options.frames * REGIONS) ** 2 * DIMS
    rows = torch.randn(options.frames * REGIONS, DIMS, device=device)
    columns = torch.randn(DIMS, options.clips * options.frames * REGIONS, device=device)
    matmul = min(seconds(lambda: rows @ columns, device) for _ in range(5))
    rate = 2 * rows.shape[0] * DIMS * columns.shape[1] / matmul
    return {
        "clips": options.clips,
        "frames": options.frames,
        "seconds": {name: round(statistics.median(value), 3) for name, value in times.items()},
        "speedup": round(statistics.median(a / b for a, b in zip(times["plain"], times["ours"], strict=True)), 2),
        "memory": memory,
        "memory_ratio": round(memory["ours"]["growth_mib"] / max(memory["plain"]["growth_mib"], 1), 3),
        "matmul_gflops": round(rate / 1e9, 1),
        "seconds_of_bare_products": round(operations / rate, 3),
        "loss": [loss, plain_loss],
        "largest_gradient_difference": float((gradients - plain_gradients).abs().max()),
        "largest_gradient": float(plain_gradients.abs().max()),
    }


def paper_batch(device_name: str, threads: int, precision: str) -> dict[str, Any]:
    """Two steps of 64 videos with two views of 28 frames: seconds of the second, and peak memory of the process."""
    torch.set_num_threads(threads)
    device = torch.device(device_name)
    work = run_step("ours", 128, 28, device, precision=precision)
    work()
    start = time.process_time()
    wall = seconds(work, device)
    used = time.process_time() - start
    result: dict[str, Any] = {"clips": 128, "frames": 28, "precision": precision, "seconds": round(wall, 2)}
    result["processor_seconds"] = round(used, 2)
    result["peak_resident_gib"] = round(_status_mib("VmHWM") / 1024, 2)
    if device.type == "cuda":
        result["peak_gpu_gib"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
    return result


def measure_sources(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of steps from cached and from online views on a project's data, in turn."""
    from lightning_fabric import Fabric

    from hapvr.stages.project import Project
    from hapvr.stages.training import training_shards
    from hapvr.train.loop import train
    from hapvr.train.report import History

    results: dict[str, list[float]] = {"cached_views": [], "online": []}
    waits = []
    for number in range(options.rounds):
        for source, steps in (("cached_views", 30), ("online", 1)):
            overrides: dict[str, Any] = {
                "train.source": source,
                "train.steps": steps,
                "train.batch_videos": options.batch_videos,
                "train.data_workers": 0,
                "train.seed": number,
            }
            if options.data_root:
                overrides["data_root"] = options.data_root
            project = Project.open(options.config, overrides=overrides)
            with tempfile.TemporaryDirectory(prefix="hapvr-benchmark-") as name:
                folder = Path(name)
                result = train(
                    project.config,
                    project.root,
                    training_shards(project),
                    folder=folder,
                    fabric=Fabric(accelerator=torch.device(options.device).type, devices=1),
                    validate=None,
                    open_logger=lambda first_step, folder=folder: History(folder, first_step=first_step),
                )
            results[source].append(result.seconds / steps)
            if source == "cached_views":
                waits.append(result.wait_rate)
    return {
        "batch_videos": options.batch_videos,
        "seconds_per_step": {name: round(statistics.median(value), 4) for name, value in results.items()},
        "online_over_cached": round(
            statistics.median(b / a for a, b in zip(results["cached_views"], results["online"], strict=True)), 1
        ),
        "wait_rate_cached": round(statistics.median(waits), 4),
    }


def in_own_process(work: Callable[..., Any], *arguments: Any) -> Any:
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def _status_mib(name: str) -> float:
    """VmRSS, what is resident now, or VmHWM, the most that was."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {name}; this measurement needs Linux")


def main(arguments: Sequence[str]) -> None:
    """Measures and prints JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=["step", "sources", "paper"], default=["step", "paper"])
    parser.add_argument("--clips", type=int, default=32)
    parser.add_argument("--frames", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-videos", type=int, default=16, help="of `sources`")
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"))
    parser.add_argument("--data-root", help="default: the configuration's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0, help="0 for torch's own choice")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    results: dict[str, Any] = {
        "machine": {
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "torch": torch.__version__,
        }
    }
    if "step" in options.parts:
        results["step"] = measure_step(options)
    if "sources" in options.parts:
        results["sources"] = measure_sources(options)
    if "paper" in options.parts:
        results["paper"] = [
            in_own_process(paper_batch, options.device, torch.get_num_threads(), precision)
            for precision in ("32-true", "bf16-mixed")
        ]
    sys.stdout.write(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
