"""How well are the times of copied parts found, by the local alignment that searches use and by its alternatives?

    python bench/segments.py --config CONFIG --benchmark NAME --calibrate-on NAME [--model FOLDER] [--out FILE.json]

Both benchmarks are made by the configuration's sources, with features. The threshold of frame similarities is what 95 % of
the unrelated pairs of --calibrate-on stay below with two consecutive frames, as `hapvr.stages.calibration` fits it. Without
--model frames are compared by TopK-Chamfer similarity of their regions, nothing learned. All aligners get the same matrices.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import torch

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.benchmark.scoring import score_benchmark
from hapvr.model.checkpoint import load_network
from hapvr.model.family import VideoNetwork
from hapvr.model.network import SimilarityNetwork
from hapvr.model.settings import NetworkSettings
from hapvr.scorer.aligners import ALIGNERS
from hapvr.scorer.frame_matrix import relative_frame_matrix
from hapvr.scorer.segments import best_run
from hapvr.stages.benchmark_features import BenchmarkFeatures
from hapvr.stages.project import Project
from hapvr.stages.segment_scores import sampled_fps, score_segments, segments_markdown
from hapvr.stages.sources import benchmark_folder
from hapvr.stages.validation import benchmark_shards
from hapvr.storage.features import FeatureStore

QUANTILE = 0.95


def opened(project: Project, name: str) -> tuple[BenchmarkDefinition, FeatureStore]:
    definition = load_definition(str(benchmark_folder(project, name)))
    return definition, FeatureStore(project.root, benchmark_shards(project, name))


def unrelated_threshold(network: VideoNetwork, definition: BenchmarkDefinition, features: BenchmarkFeatures) -> float:
    """What QUANTILE of the unrelated pairs stay below with their most similar two consecutive frames."""
    labelled = set(definition.labels.select("query_id", "reference_id").iter_rows())
    with torch.inference_mode():
        videos = {video: network.embed(regions.float()) for video, regions in features.read(definition.video_ids)}
        runs = [
            best_run(relative_frame_matrix(network, videos[query], videos[reference]))
            for query in definition.queries
            for reference in definition.database
            if (query, reference) not in labelled and {query, reference} <= videos.keys()
        ]
    return float(np.quantile(runs, QUANTILE))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("configs/measure.yaml"))
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--calibrate-on", required=True)
    parser.add_argument("--model", type=Path, help="a network folder")
    parser.add_argument("--threshold", type=float, help="instead of the calibrated one")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    project = Project.open(arguments.config)
    definition, store = opened(project, arguments.benchmark)
    nothing_learned = NetworkSettings(attention=False, comparator=False)
    dims = project.config.whitening.dims
    network = load_network(arguments.model)[0] if arguments.model else SimilarityNetwork(nothing_learned, dims=dims)
    threshold = arguments.threshold
    if threshold is None:
        other, other_store = opened(project, arguments.calibrate_on)
        threshold = unrelated_threshold(network, other, BenchmarkFeatures(other_store, other))
    features = BenchmarkFeatures(store, definition)
    results = {}
    with tempfile.TemporaryDirectory(prefix="hapvr-segments-") as folder:
        path = score_benchmark(network, definition, features, Path(folder) / "similarities.parquet")
        similarities = pl.read_parquet(path)
    for name in ALIGNERS:
        began = time.process_time()
        scores = score_segments(
            network,
            definition,
            features,
            similarities,
            threshold=threshold,
            fps=sampled_fps(store.settings),
            aligner=name,
        )
        results[name] = scores.to_json() | {"processor_s": time.process_time() - began}
        sys.stdout.write(f"{segments_markdown(scores)}\n{results[name]['processor_s']:.1f} s of processor time\n\n")
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
