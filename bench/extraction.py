"""JPEG rows to features, against the frozen network alone.

    python -m bench.extraction [--architectures resnet50.tv_in1k mobilenetv2_100 ...] [--precision
    float32|bfloat16]
        [--videos 4] [--frames 24] [--rounds 3] [--device cpu|cuda] [--threads 1]

The network alone runs in torch on prepared pixels: no decoding, no normalisation, no regions, no
whitening.
"""

import argparse
from typing import Any

import numpy as np
import torch

from bench.table import parse, ratio, show, take_turns
from hapvr.networks.backbone import load_backbone
from hapvr.networks.batches import embed_by_networks
from hapvr.networks.settings import BATCH_FRAMES, BackboneConfig, Weights
from hapvr.networks.weights import normalize_pixels
from hapvr.networks.whitening import Whitening
from hapvr.seeding import numpy_rng, torch_rng
from hapvr.steps.whitening import squares
from hapvr.video.frames import encode_jpeg

DIMS = 512
ARCHITECTURES = ("resnet50.tv_in1k", "mobilenetv2_100", "vit_small_patch16_224")
"""A CNN, one of cheap convolutions, and a vision transformer."""


def measure(architecture: str, options: argparse.Namespace) -> dict[str, Any]:
    """Frames per second of the whole way from JPEG rows to features, and of torch's network alone;
    and their ratio."""
    config = BackboneConfig(
        architecture=architecture, weights=Weights(source="random"), precision=options.precision
    )
    backbone = load_backbone(config)
    with torch.inference_mode():
        empty = torch.zeros(1, 3, config.crop_px, config.crop_px, dtype=torch.uint8)
        channels = backbone.regions(empty).shape[-1]

    dims = min(DIMS, channels)
    projection = torch.randn(channels, dims, generator=torch_rng(0, "whitening")).numpy()
    whitening = Whitening(np.zeros(channels, np.float32), projection, np.ones(dims, np.float32))
    embed = backbone.embedder(whitening, options.device)
    noise = numpy_rng(0, "frames").integers(0, 255, (16, 28, 3), dtype=np.uint8)
    picture = np.kron(noise, np.ones((16, 16, 1), np.uint8))
    jpegs = [encode_jpeg(np.roll(picture, 5 * number, axis=1)) for number in range(options.frames)]
    shown = squares(jpegs, backbone.crop_px, config.picture)
    frames = torch.from_numpy(np.tile(shown, (options.videos, 1, 1, 1))).to(options.device)
    pixels = normalize_pixels(frames, backbone.mean, backbone.std).contiguous(
        memory_format=torch.channels_last
    )

    def whole() -> None:
        clips = (
            (str(number), squares(jpegs, backbone.crop_px, config.picture))
            for number in range(options.videos)
        )
        list(embed_by_networks(clips, [embed]))

    @torch.inference_mode()
    def network() -> None:
        for part in torch.split(pixels, BATCH_FRAMES):
            with torch.autocast(
                part.device.type, torch.bfloat16, enabled=options.precision == "bfloat16"
            ):
                backbone.network(part)[0].flatten()[0].item()  # waits for the device

    network()
    embed(frames[:BATCH_FRAMES].cpu().numpy())
    times = take_turns({"whole": whole, "network": network}, rounds=options.rounds)
    return {
        "architecture": architecture,
        "precision": options.precision,
        "frames/s": len(pixels) / min(times["whole"]),
        "network alone, frames/s": len(pixels) / min(times["network"]),
        "rate against network": ratio(times["network"], times["whole"]),
    }


def main() -> None:
    """Measures and prints a table."""
    sizes = {"videos": 4, "frames": 24, "rounds": 3, "threads": 1}
    options = parse(
        __doc__, architectures=ARCHITECTURES, precision="float32", device="cpu", **sizes
    )
    show([measure(architecture, options) for architecture in options.architectures])


if __name__ == "__main__":
    main()
