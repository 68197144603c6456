"""Similarity of raw video files: decode, regions, whitening, network."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hapvr.config import SamplingConfig, ServingConfig
from hapvr.errors import ArgumentError, VideoError
from hapvr.features.backbone import Backbone
from hapvr.features.extract import region_embedder
from hapvr.features.whitening import Whitening
from hapvr.model.network import SimilarityNetwork
from hapvr.model.pairwise import Limits, PackedVideos, score_packed
from hapvr.progress import Progress, no_progress
from hapvr.scorer.access import Access
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.deadline import Deadline, Turns
from hapvr.scorer.frame_matrix import frame_matrix, relative_frame_matrix
from hapvr.scorer.request import RequestVideos
from hapvr.scorer.segments import DEFAULT_THRESHOLD, Segment, align, timed_segments
from hapvr.scorer.videos import SampledFeatures, VideoReader

NEVER = Deadline(None)


@dataclass(frozen=True)
class PairScore:
    """similarity in [-1, 1], higher is closer; None with the reason in `error` where a video cannot be used.

    probability: of a match, in [0, 1]; None from a model without calibration. segments: None where not asked for.
    warning: what speaks against believing the numbers, see `VideoScorer.warning`; empty where nothing does.
    """

    query: str
    reference: str
    similarity: float | None
    probability: float | None = None
    segments: tuple[Segment, ...] | None = None
    error: str = ""
    warning: str = ""


class VideoScorer:
    """Scores pairs of videos with a trained network. Keeps the features of the last videos seen; any thread may call it.

    warning: a sentence that goes with every answer, e.g. that the weights are random; empty where there is none.
    """

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
        calibration: Calibration | None = None,
        limits: ServingConfig | None = None,
        warning: str = "",
    ) -> None:
        self._network = network.to(device).eval()
        self._sampling = sampling
        self._device = torch.device(device)
        self._computing = Turns()
        self.limits = limits or ServingConfig()
        self.description = description
        self.calibration = calibration
        self.warning = warning
        self._reader = VideoReader(
            region_embedder(backbone, whitening, device),
            crop_px=backbone.crop_px,
            batch_frames=batch_frames,
            sampling=sampling,
            limits=self.limits,
            computing=self._computing,
        )
        # one operation at a time, so that torch's number of threads is left alone
        self._pair_limits = dataclasses.replace(Limits.for_device(self._device), workers=0)

    def features(self, path: Path) -> Tensor:
        """Region features [T, 9, D] of a file. Raises VideoError."""
        return self._video(path).regions

    def frame_similarity(self, query: Path, reference: Path) -> Tensor:
        """[T, T'] in [-1, 1], before the comparator. Raises VideoError."""
        first, second = (self._embedding(self._video(path)) for path in (query, reference))
        return frame_matrix(self._network, first, second).cpu()

    def score(self, query: Path, reference: Path) -> float:
        """Video similarity in [-1, 1]. Raises VideoError."""
        first, second = (self._embedding(self._video(path)) for path in (query, reference))
        return self._similarity(first, second)

    def segments(self, query: Path, reference: Path) -> tuple[Segment, ...]:
        """Parts of the query and of the reference that show the same, the longest and surest first. Raises VideoError."""
        first, second = self._video(query), self._video(reference)
        return self._segments(first, self._embedding(first), second, self._embedding(second))

    def score_pairs(
        self,
        pairs: Sequence[tuple[str | Path, str | Path]],
        *,
        segments: bool = False,
        limits: ServingConfig | None = None,
        access: Access | None = None,
        progress: Progress = no_progress,
    ) -> list[PairScore]:
        """One row per pair, in order; what cannot be used or is above a limit gives rows with an error.

        pairs: paths, or http(s) URLs of hosts that `access` allows. limits: default is the model's; access: default is
        all files and no hosts.
        """
        limits = limits or self.limits
        deadline = Deadline(limits.request_timeout_s)
        named = [(str(query), str(reference)) for query, reference in pairs]
        allowed = named[: limits.max_pairs]
        rows = []
        num_frame_pairs = 0
        names = [name for pair in allowed for name in pair]
        with RequestVideos(self._reader, names, limits=limits, access=access or Access(), deadline=deadline) as videos:
            query: tuple[str, SampledFeatures, Tensor] | None = None
            for number, (first, second) in enumerate(allowed):
                progress(number, len(allowed))
                try:
                    deadline.check()
                    if query is None or query[0] != first:
                        video = videos.get(first)
                        query = first, video, self._embedding(video, deadline)
                    reference = videos.get(second)
                    num_frame_pairs += len(query[1].regions) * len(reference.regions)
                    if num_frame_pairs > limits.max_frame_pairs:
                        raise VideoError(
                            "too_much_work",
                            f"request: more than {limits.max_frame_pairs} pairs of frames; send fewer or shorter videos, or "
                            "see serving.max_frame_pairs",
                        )
                    rows.append(self._row(first, second, query[1], query[2], reference, deadline, segments=segments))
                except VideoError as error:
                    rows.append(PairScore(first, second, None, error=f"{error.reason}: {error}"))
                except ArgumentError as error:  # features that are not finite, from pictures that overflow the networks
                    rows.append(PairScore(first, second, None, error=f"not_scored: {error}"))
        message = f"too_many_pairs: {len(named)} pairs; at most {limits.max_pairs} are scored in a request"
        rows += [PairScore(first, second, None, error=message) for first, second in named[limits.max_pairs :]]
        progress(len(allowed), len(allowed))
        return [dataclasses.replace(row, warning=self.warning) for row in rows]

    def _row(
        self,
        first: str,
        second: str,
        query: SampledFeatures,
        query_embedding: Tensor,
        reference: SampledFeatures,
        deadline: Deadline,
        *,
        segments: bool,
    ) -> PairScore:
        embedding = self._embedding(reference, deadline)
        similarity = self._similarity(query_embedding, embedding, deadline)
        return PairScore(
            first,
            second,
            similarity,
            probability=None if self.calibration is None else self.calibration.probability(similarity),
            segments=self._segments(query, query_embedding, reference, embedding, deadline) if segments else None,
        )

    def _video(self, path: Path) -> SampledFeatures:
        outcome = self._reader.read([path], limits=self.limits, deadline=NEVER)[path]
        if isinstance(outcome, VideoError):
            raise VideoError(outcome.reason, str(outcome))
        return outcome

    @torch.inference_mode()
    def _embedding(self, video: SampledFeatures, deadline: Deadline = NEVER) -> Tensor:
        with self._computing.turn(deadline):
            return self._network.embed(video.regions.to(self._device))

    @torch.inference_mode()
    def _similarity(self, query: Tensor, reference: Tensor, deadline: Deadline = NEVER) -> float:
        with self._computing.turn(deadline):
            scores = score_packed(
                self._network,
                PackedVideos.from_videos([query]),
                PackedVideos.from_videos([reference]),
                limits=self._pair_limits,
            )
        if not bool(torch.isfinite(scores).all()):
            raise ArgumentError("the similarity is not finite")
        return float(scores)

    def _segments(
        self,
        first: SampledFeatures,
        query: Tensor,
        second: SampledFeatures,
        reference: Tensor,
        deadline: Deadline = NEVER,
    ) -> tuple[Segment, ...]:
        known = None if self.calibration is None else self.calibration.frame_threshold
        with self._computing.turn(deadline):
            matrix = relative_frame_matrix(self._network, query, reference)
        found = align(matrix, threshold=DEFAULT_THRESHOLD if known is None else known)
        return tuple(timed_segments(found, first.clock, second.clock, fps=self._sampling.fps))
