"""JPEG rows to features, against the frozen network alone, for any architecture."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hapvr.features.backbone import load_backbone
from hapvr.features.extract import embed_in_batches, region_embedder
from hapvr.features.settings import BackboneConfig, Precision, RandomWeights
from hapvr.features.weights import normalize_pixels, run_network
from hapvr.features.whitening import Whitening
from hapvr.seeding import numpy_rng, torch_rng
from hapvr.stages.features import crops
from hapvr.video.pool import encode_jpeg

DIMS = 512


def measure_extraction(
    architecture: str,
    *,
    num_videos: int,
    frames_per_video: int,
    device: str,
    rounds: int,
    precision: Precision,
) -> dict[str, Any]:
    """Frames/s of the whole way from JPEG rows to features, and of torch's network alone on prepared pixels; and the ratio.

    The network alone does nothing else: no decoding, no normalisation, no regions, no whitening. Both take turns, and the
    ratio is the median over rounds, so that other work on the machine changes it little.
    """
    config = BackboneConfig(
        architecture=architecture,
        weights=RandomWeights(source="random"),
        precision=precision,
    )
    backbone = load_backbone(config)
    with torch.inference_mode():
        empty = torch.zeros(1, 3, config.crop_px, config.crop_px, dtype=torch.uint8)
        channels = backbone.regions(empty).shape[-1]
    dims = min(DIMS, channels)
    rng = torch_rng(0, "whitening")
    whitening = Whitening(torch.zeros(channels), torch.randn(channels, dims, generator=rng), torch.ones(dims))
    embed = region_embedder(backbone, whitening, device)
    noise = numpy_rng(0, "frames")
    picture = np.kron(noise.integers(0, 255, (16, 28, 3), dtype=np.uint8), np.ones((16, 16, 1), np.uint8))
    jpegs = [encode_jpeg(np.roll(picture, 5 * number, axis=1), quality=95) for number in range(frames_per_video)]
    frames = crops(jpegs, backbone.crop_px).repeat(num_videos, 1, 1, 1).to(device)
    pixels = normalize_pixels(frames, backbone.mean, backbone.std).contiguous(memory_format=torch.channels_last)

    def clips() -> Iterator[tuple[str, Tensor]]:
        for number in range(num_videos):
            yield str(number), crops(jpegs, backbone.crop_px)

    def whole() -> None:
        for _, regions in embed_in_batches(clips(), embed, batch_frames=config.batch_frames):
            regions.numpy()

    @torch.inference_mode()
    def network() -> None:
        for start in range(0, len(pixels), config.batch_frames):
            maps = run_network(backbone.network, pixels[start : start + config.batch_frames], precision)
            maps[0].flatten()[0].item()  # waits for the device

    network()
    embed(frames[: config.batch_frames])
    seconds: dict[str, list[float]] = {"whole": [], "network": []}
    processor: dict[str, list[float]] = {"whole": [], "network": []}
    for _ in range(rounds):
        for name, work in (("whole", whole), ("network", network)):
            start, start_processor = time.perf_counter(), time.process_time()
            work()
            seconds[name].append(time.perf_counter() - start)
            processor[name].append(time.process_time() - start_processor)
    ratios = [alone / all_ for alone, all_ in zip(seconds["network"], seconds["whole"], strict=True)]
    return {
        "frames": len(pixels),
        "frames_per_s": round(len(pixels) / min(seconds["whole"]), 2),
        "network_frames_per_s": round(len(pixels) / min(seconds["network"]), 2),
        "rate_against_network": round(statistics.median(ratios), 3),
        "processor_rate_against_network": round(min(processor["network"]) / min(processor["whole"]), 3),
        "executor": embed.environment()["backbone.executor"],
        "precision": precision,
    }
