"""Similarity of raw video files: decode, regions, whitening, network."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hapvr.config import SamplingConfig
from hapvr.errors import VideoError
from hapvr.features.backbone import Backbone, center_crop
from hapvr.features.extract import embed_in_batches, region_embedder
from hapvr.features.images import decode_frames
from hapvr.features.whitening import Whitening
from hapvr.model.network import SimilarityNetwork
from hapvr.video.pool import sample_videos

CACHED_VIDEOS = 64


@dataclass(frozen=True)
class PairScore:
    """similarity in [-1, 1], higher is closer; None with the reason in `error` where a video cannot be used."""

    query: str
    reference: str
    similarity: float | None
    error: str = ""


class VideoScorer:
    """Scores pairs of video files with a trained network. Keeps the features of the last videos seen."""

    def __init__(
        self,
        *,
        backbone: Backbone,
        whitening: Whitening,
        network: SimilarityNetwork,
        sampling: SamplingConfig,
        batch_frames: int,
        device: str,
        description: dict[str, Any],
    ) -> None:
        self._crop_px = backbone.crop_px
        self._embed = region_embedder(backbone, whitening, device)
        self._network = network.to(device).eval()
        self._sampling = sampling
        self._batch_frames = batch_frames
        self._device = device
        self.description = description
        self._features: OrderedDict[Path, Tensor | VideoError] = OrderedDict()

    def features(self, path: Path) -> Tensor:
        """Region features [T, 9, D] of a file. Raises VideoError."""
        return self._features_of([path])[0]

    @torch.inference_mode()
    def frame_similarity(self, query: Path, reference: Path) -> Tensor:
        """[T, T'] in [-1, 1], before the comparator. Raises VideoError."""
        first, second = self._embedding(query), self._embedding(reference)
        return self._network.compare(first, second).frame[0, 0].cpu()

    @torch.inference_mode()
    def score(self, query: Path, reference: Path) -> float:
        """Video similarity in [-1, 1]. Raises VideoError."""
        return float(self._network.score(self._embedding(query), self._embedding(reference)))

    def score_pairs(self, pairs: Sequence[tuple[Path, Path]]) -> list[PairScore]:
        """One row per pair, in order; a video that cannot be used gives rows with an error, not a failed batch."""
        rows = []
        for query, reference in pairs:
            try:
                rows.append(PairScore(str(query), str(reference), self.score(query, reference)))
            except VideoError as error:
                rows.append(PairScore(str(query), str(reference), None, f"{error.reason}: {error}"))
        return rows

    def _embedding(self, path: Path) -> Tensor:
        return self._network.embed(self.features(path).to(self._device))[None]

    def _features_of(self, paths: Sequence[Path]) -> list[Tensor]:
        missing = [path for path in dict.fromkeys(paths) if path not in self._features]
        for path, video in zip(
            missing, sample_videos([(str(path), path) for path in missing], config=self._sampling), strict=True
        ):
            if video.reason:
                self._features[path] = VideoError(video.reason, video.message)
                continue
            crops = center_crop(decode_frames(video.jpegs), self._crop_px)
            batches = embed_in_batches([("", crops)], self._embed, batch_frames=self._batch_frames)
            self._features[path] = next(batches)[1]
        found = [self._features[path] for path in paths]
        for path in paths:
            self._features.move_to_end(path)
        while len(self._features) > CACHED_VIDEOS:
            self._features.popitem(last=False)
        for value in found:
            if isinstance(value, VideoError):
                raise VideoError(value.reason, str(value))
        return [value for value in found if isinstance(value, Tensor)]
