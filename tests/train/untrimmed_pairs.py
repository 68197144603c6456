"""Untrimmed videos of the demo, as features: a clip stands among still pictures of other videos,
such as slides and title cards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import torch
from torch import Tensor

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.protocol import evaluate
from hapvr.data.features import STAGE, FeatureFile
from hapvr.model.family import VideoNetwork
from hapvr.model.vvs import TemporalSaliency, diagonal_cells
from hapvr.seeding import numpy_rng
from hapvr.steps.project import Project
from hapvr.train.pair_labels import CopiedSegment

NUM_FRAMES = 32
"""Of an untrimmed video, at least."""


@dataclass(frozen=True)
class UntrimmedVideo:
    """features: [T, R + k, D]. start, end: the frames of the clip, from start to end - 1."""

    features: Tensor
    start: int = 0
    end: int = 0


def trimmed_features(project: Project) -> dict[str, Tensor]:
    """The stored features of all videos, with frame extras where they have any."""
    features = {}
    for key in project.root.list_folders(STAGE):
        file = FeatureFile(project.shard(STAGE, key), extras=project.config.features.pooled)
        for video_id in file.video_ids:
            features[video_id] = torch.from_numpy(file.regions(video_id).copy())

    return features


def untrimmed(name: str, clip: Tensor | None, others: Sequence[Tensor]) -> UntrimmedVideo:
    """A clip among still pictures, each a frame of another video shown as long as that video, or
    these pictures alone."""
    rng = numpy_rng("untrimmed", name)
    parts: list[Tensor] = []
    length = 0 if clip is None else len(clip)
    for index in rng.permutation(len(others)).tolist():
        if length >= NUM_FRAMES:
            break
        donor = others[index]
        middle = len(donor) // 2
        parts.append(donor[middle : middle + 1].expand_as(donor))
        length += len(donor)

    if clip is None:
        return UntrimmedVideo(torch.cat(parts))
    place = int(rng.integers(len(parts) + 1))
    start = sum(map(len, parts[:place]))
    shown = torch.cat([*parts[:place], clip, *parts[place:]])
    return UntrimmedVideo(shown, start, start + len(clip))


def moved(copy: CopiedSegment, videos: Mapping[str, UntrimmedVideo]) -> CopiedSegment:
    """The segment in the untrimmed videos, which have a frame a second."""
    query_s = videos[copy.query].start
    reference_s = videos[copy.reference].start
    times = {
        "query_start_s": copy.query_start_s + query_s,
        "query_end_s": copy.query_end_s + query_s,
        "reference_start_s": copy.reference_start_s + reference_s,
        "reference_end_s": copy.reference_end_s + reference_s,
    }
    return copy.model_copy(update=times)


def mean_metric(
    network: VideoNetwork, definition: BenchmarkDefinition, videos: Mapping[str, UntrimmedVideo]
) -> float:
    """The mean of the benchmark's metrics by vectors of these videos."""
    names = list(videos)
    queries = list(definition.queries)
    embedded = {name: network.embed(videos[name].features.float()) for name in names}
    scores = network.score_videos(
        [embedded[name] for name in queries], [embedded[name] for name in names]
    )
    rows = [
        (query, name, float(score))
        for query, of_query in zip(queries, scores, strict=True)
        for name, score in zip(names, of_query, strict=True)
        if query != name
    ]
    columns = ["query_id", "reference_id", "similarity"]
    metrics = evaluate(definition, pl.DataFrame(rows, schema=columns, orient="row")).metrics
    return sum(metrics.values()) / len(metrics)


def saliency_auc(saliency: TemporalSaliency, video: UntrimmedVideo, *, num_regions: int) -> float:
    """How often a frame of the clip has a larger weight than a still one."""
    regions = video.features[:, :num_regions].float()
    length = len(regions)
    cells = diagonal_cells(regions, torch.arange(length), 0, length)
    weights = saliency.weights_of_states(saliency.windows(cells))
    is_clip = torch.zeros(length, dtype=torch.bool)
    is_clip[video.start : video.end] = True
    higher = weights[is_clip][:, None] > weights[~is_clip][None]
    return float(higher.float().mean())
