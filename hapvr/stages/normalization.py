"""Normalised similarities of a benchmark: each query is scored against a background of unrelated videos (S2VS Fig. 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.normalization import normalize_similarities
from hapvr.benchmark.scoring import ScoringSettings, score_videos
from hapvr.config import NormalizationConfig
from hapvr.errors import ArgumentError, DataError
from hapvr.model.family import VideoNetwork
from hapvr.seeding import numpy_rng
from hapvr.stages.benchmark_features import BenchmarkFeatures, stored_ids
from hapvr.storage.features import STAGE, FeatureStore
from hapvr.storage.filesystem import DataRoot


def normalized_similarities(
    network: VideoNetwork,
    definition: BenchmarkDefinition,
    queries: BenchmarkFeatures,
    root: DataRoot,
    similarities: Path,
    out: Path,
    *,
    config: NormalizationConfig,
    device: torch.device | str,
    settings: ScoringSettings | None = None,
) -> Path:
    """Write `similarities` less each query's level on the background; returns `out`.

    queries: features of the benchmark; root: where the features of `config.source` lie; settings: as the similarities
    were scored. The similarities to the background are kept beside `out`, as `background-<out>`.
    Raises ArgumentError if the configuration names no source, DataError if that source has no features that can be used.
    """
    features = _BackgroundFeatures(root, definition, queries, config)
    background = out.with_name(f"background-{out.name}")
    score_videos(
        network,
        definition.queries,
        features.background,
        features,
        background,
        name=f"background {config.source} of {definition.name}",
        device=device,
        settings=settings,
    )
    return normalize_similarities(similarities, background, out, top_k=config.top_k, weight=config.weight)


class _BackgroundFeatures:
    """Features of a benchmark's queries and of the background videos, as the scoring engine reads them."""

    def __init__(
        self, root: DataRoot, definition: BenchmarkDefinition, queries: BenchmarkFeatures, config: NormalizationConfig
    ) -> None:
        if config.source is None:
            raise ArgumentError("normalization: no background is named; set evaluation.normalization.source")
        keys = sorted(key for key in root.list_folders(STAGE) if key.rpartition("-")[0] == config.source)
        if not keys:
            raise DataError(
                f"normalization: {root.url}/{STAGE} has no shards of a source {config.source!r}; correct "
                "evaluation.normalization.source, or extract the features of that source first"
            )
        self._store = FeatureStore(root, keys)
        if self._store.settings != queries.settings:
            raise DataError(
                f"normalization: the features of {config.source} were made with other settings than those of "
                f"{definition.name}; extract both with the same configuration"
            )
        self._queries = queries
        self.background = _chosen(self._store, definition, config.max_videos)

    def available(self) -> set[str]:
        """Ids of the benchmark's videos and of the background videos."""
        return self._queries.available() | set(self.background)

    def digests(self) -> dict[str, str]:
        """Shard key -> digest, of both."""
        return self._queries.digests() | self._store.digests()

    def read(self, video_ids: Sequence[str], *, side: bool = False) -> Iterator[tuple[str, Tensor]]:
        """(id, features [T, R, D]); queries first; side: as `FeatureStore`."""
        background = set(self.background)
        yield from self._queries.read([video for video in video_ids if video not in background], side=side)
        yield from self._store.read([video for video in video_ids if video in background], side=side)


def _chosen(store: FeatureStore, definition: BenchmarkDefinition, max_videos: int) -> tuple[str, ...]:
    """At most `max_videos` ids of the store, drawn with a fixed seed; videos of the benchmark are left out."""
    available = store.available()
    usable = sorted(available - set(stored_ids(definition, available).values()))
    order = numpy_rng(0, "normalization background").permutation(len(usable))[:max_videos]
    return tuple(usable[number] for number in sorted(order.tolist()))
