"""The data plane's rates: decoding against other readers, extraction against the bare network, stores against raw files.

    python -m bench.data [--clips FOLDER] [--rounds 3] [--videos 226000] [--device cpu|cuda] [--only PART ...]
        [--precision float32|bfloat16|float16] [--compile] [--executor auto|torch|openvino]
        [--architectures resnet50.tv_in1k mobilenetv2_100 ...]

Everything runs on one thread, so rates are per core; `--device cuda` moves the network. Times are the best of the rounds,
whose parts take turns. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from bench.data_decoding import measure_decoding
from bench.data_extraction import measure_extraction
from bench.data_stores import measure_collection, measure_stores
from hapvr.features.settings import Precision
from hapvr.provenance import environment

CLIPS = Path(__file__).resolve().parent.parent.parent / "shared" / "videos"

ARCHITECTURES = ("resnet50.tv_in1k", "mobilenetv2_100", "vit_small_patch16_224")
"""A CNN, one of cheap convolutions, and a vision transformer."""


def main(arguments: Sequence[str]) -> None:
    """Measures and prints JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=Path, default=CLIPS, help="a folder of videos")
    parser.add_argument("--num-clips", type=int, default=15, help="so many of them, evenly spaced")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--videos", type=int, default=226_000, help="size of the synthetic collection")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32", choices=get_args(Precision), help="of the frozen network")
    parser.add_argument("--compile", action="store_true", help="compile the frozen network")
    parser.add_argument("--executor", default="auto", choices=["auto", "torch", "openvino"], help="of the extraction")
    parser.add_argument("--architectures", nargs="+", default=ARCHITECTURES, help="frozen networks to extract with")
    parser.add_argument("--only", nargs="*", choices=["decoding", "extraction", "stores", "collection"])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results: dict[str, Any] = {"machine": {"threads": 1, "device": options.device, "versions": environment()}}

    def stores() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="hapvr-stores-") as folder:
            return measure_stores(Path(folder), num_videos=400, rounds=options.rounds)

    def decoding() -> dict[str, Any]:
        clips = sorted(path for path in options.clips.iterdir() if path.suffix in {".mp4", ".mkv", ".webm"})
        return measure_decoding(clips[:: max(1, len(clips) // options.num_clips)], rounds=options.rounds)

    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "collection": lambda: measure_collection(num_videos=options.videos),
        "decoding": decoding,
        "extraction": lambda: {
            architecture: measure_extraction(
                architecture,
                num_videos=4,
                frames_per_video=24,
                device=options.device,
                rounds=options.rounds,
                precision=options.precision,
                compiled=options.compile,
                executor=options.executor,
            )
            for architecture in options.architectures
        },
        "stores": stores,
    }
    for name, part in parts.items():
        if not options.only or name in options.only:
            results[name] = part()
    sys.stdout.write(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
