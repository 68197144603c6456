"""How well are the times of copied parts found?

    python bench/segments.py --benchmark FOLDER [--config CONFIG] [--threshold 0.5 --threshold 0.7] [--out FILE.json]

FOLDER: what `hapvr benchmarks make` or a source of `kind: own_videos` wrote, for example with `edits: parts`. Frames are
sampled once a second, and their regions, by the configuration's backbone, whitened on the benchmark's originals. Nothing is
learned: frames are compared by TopK-Chamfer similarity of their regions.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.benchmark.scoring import score_benchmark
from hapvr.config import Config
from hapvr.config_file import load_config
from hapvr.features.backbone import center_crop, load_backbone
from hapvr.features.whitening import fit_whitening
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.scorer.segments import DEFAULT_THRESHOLD
from hapvr.stages.segment_scores import score_segments, segments_markdown
from hapvr.video.decode import sample_frames

FRAMES_AT_ONCE = 32


class InMemory:
    """The features of `hapvr.stages.benchmark_features`, from memory."""

    def __init__(self, regions: dict[str, Tensor], fps: float) -> None:
        self._regions = regions
        self._fps = fps

    def available(self) -> set[str]:
        return set(self._regions)

    def digests(self) -> dict[str, str]:
        return {}

    @property
    def settings(self) -> dict[str, Any]:
        return {"sampling": {"fps": self._fps}}

    def times(self, video_id: str) -> Sequence[float]:
        return [row / self._fps for row in range(len(self._regions[video_id]))]

    def read(self, video_ids: Sequence[str], *, side: bool = False) -> Iterator[tuple[str, Tensor]]:
        yield from ((video, self._regions[video]) for video in video_ids)


@torch.inference_mode()
def extracted(definition: BenchmarkDefinition, config: Config) -> InMemory:
    backbone, sampling = load_backbone(config.backbone), config.sampling
    regions = {}
    for video, path in definition.video_files().items():
        sampled = sample_frames(
            path, fps=sampling.fps, short_side_px=sampling.short_side_px, max_frames=sampling.max_frames
        )
        crops = center_crop(torch.from_numpy(sampled.frames).permute(0, 3, 1, 2), backbone.crop_px)
        parts = [
            backbone.regions(crops[start : start + FRAMES_AT_ONCE]) for start in range(0, len(crops), FRAMES_AT_ONCE)
        ]
        regions[video] = torch.cat(parts).float()
    originals = torch.cat([regions[video] for video in definition.queries]).flatten(0, 1)
    whitening = fit_whitening(originals, dims=config.whitening.dims)
    return InMemory({video: whitening.apply(one).half() for video, one in regions.items()}, sampling.fps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("configs/measure.yaml"))
    parser.add_argument("--benchmark", type=Path, required=True)
    parser.add_argument("--threshold", type=float, action="append", help="frame similarity that counts as the same")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    definition = load_definition(arguments.benchmark)
    features = extracted(definition, config)
    network = SimilarityNetwork(NetworkSettings(attention=False, comparator=False), dims=config.whitening.dims).eval()
    with tempfile.TemporaryDirectory(prefix="hapvr-segments-") as folder:
        similarities = score_benchmark(network, definition, features, Path(folder) / "similarities.parquet")
        results = []
        for threshold in arguments.threshold or [DEFAULT_THRESHOLD]:
            began = time.process_time()
            scores = score_segments(network, definition, features, similarities, threshold=threshold)
            results.append(scores.to_json() | {"processor_s": time.process_time() - began})
            sys.stdout.write(f"{segments_markdown(scores)}\n{results[-1]['processor_s']:.1f} s of processor time\n\n")
            sys.stdout.flush()
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
