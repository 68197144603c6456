"""Similarity of raw video files: decode, regions, whitening, network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hapvr.errors import ArgumentError, VideoError
from hapvr.model.settings import NUM_REGIONS
from hapvr.progress import Progress, no_progress
from hapvr.scorer.access import Access, ComputeLock, Deadline
from hapvr.scorer.blank import blank_pictures, is_blank_of_copies, mean_directions
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.segments import (
    DEFAULT_THRESHOLD,
    FrameTimes,
    Segment,
    best_run,
    clearest,
    relative_similarity,
)
from hapvr.scorer.sparse_segments import align_timed, widened
from hapvr.scorer.videos import RequestVideos, SampledFeatures, VideoReader
from hapvr.settings import ServingConfig
from hapvr.video.frames import Hashes
from hapvr.video.settings import Picture, SamplingConfig

if TYPE_CHECKING:
    from hapvr.scorer.onnx_networks import ONNXNetworks
    from hapvr.scorer.plain_networks import PlainNetworks
    from hapvr.scorer.torch_networks import TorchNetworks

    AnyNetworks = PlainNetworks | ONNXNetworks | TorchNetworks
    """What `PairNetworks` describes; the embedding that they take is their own."""

NEVER = Deadline(None)


@dataclass(frozen=True)
class PairScore:
    """similarity in [-1, 1], higher is closer; None with the reason in `error` where a video cannot
    be used. probability: of a match, in [0, 1]; None from a model without calibration. segments:
    None where not asked for. warning: what speaks against believing the numbers, see
    `VideoScorer.warning` and `FrameTimes`; empty where nothing does."""

    query: str
    reference: str
    similarity: float | None
    probability: float | None = None
    segments: tuple[Segment, ...] | None = None
    error: str = ""
    warning: str = ""


@dataclass(frozen=True, eq=False)
class EmbeddedVideo:
    """What is compared. regions: [T, r, d], a numpy array or a tensor on the device of the
    networks; clock: of the T sampled frames; hashes: [T], of their pictures."""

    regions: Any
    clock: FrameTimes
    hashes: Hashes

    def __len__(self) -> int:
        return len(self.regions)

    def part(self, first: int, last: int) -> EmbeddedVideo:
        """The frames from `first` to `last` - 1, with their own times."""
        clock = replace(self.clock, times_s=self.clock.times_s[first:last])
        return EmbeddedVideo(self.regions[first:last], clock, self.hashes[first:last])


class VideoScorer:
    """Scores pairs of videos with a trained network. Keeps the features of the last videos seen;
    any thread may call it. warning: a sentence that goes with every answer, e.g. that the weights
    are random; empty where there is none."""

    def __init__(  # noqa: PLR0913  # what a bundle describes
        self,
        networks: AnyNetworks,
        *,
        crop_px: int,
        picture: Picture,
        sampling: SamplingConfig,
        calibration: Calibration | None,
        limits: ServingConfig,
        warning: str,
        untrained: bool = False,
    ) -> None:
        self._untrained = untrained
        self._crop_px = crop_px
        self._blank: NDArray[np.float32] | None = None
        self.networks, self.sampling, self.calibration = networks, sampling, calibration
        self.limits, self.warning, self._computing = limits, warning, ComputeLock()
        self._reader = VideoReader(
            networks.regions,
            crop_px=crop_px,
            picture=picture,
            sampling=sampling,
            computing=self._computing,
        )

    def features(self, path: Path) -> NDArray[np.floating]:
        """Region features [T, 9, D] of a file. Raises VideoError."""
        regions = self._video(path).regions
        return regions[:, :NUM_REGIONS] if self.networks.needs_extras else regions

    def frame_similarity(self, query: Path, reference: Path) -> NDArray[np.float32]:
        """[T, T'] in [-1, 1], before the comparator. Raises VideoError."""
        first, second = (self.embed(self._video(path)).regions for path in (query, reference))
        return self.networks.frame_similarity(first, second)

    def score(self, query: Path, reference: Path) -> float:
        """Video similarity in [-1, 1]. Raises VideoError."""
        return self.similarity(self.embed(self._video(query)), self.embed(self._video(reference)))

    def score_pairs(
        self,
        pairs: Sequence[tuple[str | Path, str | Path]],
        *,
        segments: bool = False,
        limits: ServingConfig | None = None,
        access: Access | None = None,
        progress: Progress = no_progress,
    ) -> list[PairScore]:
        """One row per pair, in order; what cannot be used or is above a limit gives rows with an
        error. pairs: paths, or http(s) URLs of hosts that `access` allows. Defaults: limits of the
        model; access to all files and no hosts."""
        limits = limits or self.limits
        deadline = Deadline(limits.request_timeout_s)
        named = [(str(query), str(reference)) for query, reference in pairs]
        allowed = named[: limits.max_pairs]
        rows: list[PairScore] = []
        num_frame_pairs = 0
        query: tuple[str, EmbeddedVideo] | None = None
        names = [name for pair in allowed for name in pair]
        with self.open_videos(names, limits=limits, access=access, deadline=deadline) as videos:
            for number, (first, second) in enumerate(allowed):
                progress(number, len(allowed))
                row = PairScore(first, second, None, warning=self.warning)
                try:
                    deadline.check()
                    if query is None or query[0] != first:
                        query = first, self.embed(videos.get(first), deadline)
                    reference = videos.get(second)
                    num_frame_pairs += len(query[1]) * len(reference.regions)
                    if num_frame_pairs > limits.max_frame_pairs:
                        raise VideoError(
                            "too_much_work",
                            f"request: more than {limits.max_frame_pairs} pairs of frames; "
                            "send fewer or shorter videos, or "
                            "see serving.max_frame_pairs",
                        )
                    embedded = self.embed(reference, deadline)
                    similarity = self.pair_similarity(query[1], embedded, deadline)
                    probability = (
                        None
                        if self.calibration is None
                        else self.calibration.probability(similarity)
                    )
                    found = (
                        self.matching_segments(query[1], embedded, deadline) if segments else None
                    )
                    said = (self.warning, *query[1].clock.notes, *embedded.clock.notes)
                    row = replace(
                        row, similarity=similarity, probability=probability, segments=found
                    )
                    row = replace(row, warning="; ".join(filter(None, said)))
                except VideoError as error:
                    row = replace(row, error=f"{error.reason}: {error}")
                # features that are not finite, from pictures that overflow the networks
                except ArgumentError as error:
                    row = replace(row, error=f"not_scored: {error}")
                rows.append(row)
        refused = (
            f"too_many_pairs: {len(named)} pairs; at most {limits.max_pairs} are "
            "scored in a request"
        )
        rows += [
            PairScore(*pair, None, error=refused, warning=self.warning)
            for pair in named[limits.max_pairs :]
        ]
        progress(len(allowed), len(allowed))
        return rows

    def open_videos(
        self,
        names: Sequence[str],
        *,
        limits: ServingConfig | None = None,
        access: Access | None = None,
        deadline: Deadline = NEVER,
        crops: bool = False,
    ) -> RequestVideos:
        """Features of files and URLs, read a group ahead; a context. Defaults are those of
        `score_pairs`. crops: also of the crops of a query."""
        return RequestVideos(
            reader=self._reader,
            names=list(dict.fromkeys(names)),
            limits=limits or self.limits,
            access=access or Access(),
            deadline=deadline,
            crops=crops,
        )

    def sampled(self, jpegs: Sequence[bytes]) -> SampledFeatures:
        """Features of frames as the sampling gives them, T >= 1, and of their crops."""
        clock = FrameTimes(tuple(place / self.sampling.fps for place in range(len(jpegs))))
        return self._reader.features(jpegs, clock, NEVER, crops=True)

    def embed(self, video: SampledFeatures, deadline: Deadline = NEVER) -> EmbeddedVideo:
        """The embedding of a video's features [T, R, D], in any floating dtype."""
        with self._computing.hold(deadline):
            return EmbeddedVideo(self.networks.embed(video.regions), video.clock, video.hashes)

    def views(self, video: SampledFeatures, deadline: Deadline = NEVER) -> list[EmbeddedVideo]:
        """The embeddings of the whole picture, which comes first, and of each crop, all of
        the same frames."""
        return [self.embed(picture, deadline) for picture in (video, *video.crops)]

    def similarity(
        self, query: EmbeddedVideo, reference: EmbeddedVideo, deadline: Deadline = NEVER
    ) -> float:
        """The video similarity, in [-1, 1]. Raises ArgumentError for any other value."""
        return self.similarities([query], reference, deadline)[0]

    def pair_similarity(
        self, query: EmbeddedVideo, reference: EmbeddedVideo, deadline: Deadline = NEVER
    ) -> float:
        """What the calibration of pairs of files is of, in [-1, 1]: the similarity of a trained
        network; of an untrained model, how alike two frames in a row are, wherever they are."""
        if not self._untrained:
            return self.similarity(query, reference, deadline)
        return best_run(self.relative_similarity(query, reference, deadline))

    def similarities(
        self, queries: Sequence[EmbeddedVideo], reference: EmbeddedVideo, deadline: Deadline = NEVER
    ) -> list[float]:
        """As `similarity`, of each query, at least one."""
        with self._computing.hold(deadline):
            scores = self.networks.similarities(
                [one.regions for one in queries], [reference.regions]
            )
        return _similarities(scores[:, 0])

    def comparisons(
        self, query: EmbeddedVideo, references: Sequence[EmbeddedVideo], deadline: Deadline = NEVER
    ) -> list[tuple[float, NDArray[np.float64]]]:
        """As `similarity`, of each reference, with the `relative_similarity` of its frames."""
        with self._computing.hold(deadline):
            scores, frames = self.networks.comparisons(
                query.regions, [one.regions for one in references]
            )
            own, *others = [
                self.networks.self_similarity(one.regions) for one in (query, *references)
            ]
            relative = [
                self._without_blank(relative_similarity(matrix, own, other), query, reference)
                for matrix, other, reference in zip(frames, others, references, strict=True)
            ]
        return list(zip(_similarities(scores), relative, strict=True))

    @property
    def frame_threshold(self) -> float:
        """Relative frame similarity from which on two frames count as the same in segments: the
        fitted one, or the default."""
        known = None if self.calibration is None else self.calibration.frame_threshold
        return DEFAULT_THRESHOLD if known is None else known

    def relative_similarity(
        self, query: EmbeddedVideo, reference: EmbeddedVideo, deadline: Deadline = NEVER
    ) -> NDArray[np.float64]:
        """Frame similarities [T, T'] in [-1, 1], 1 for the same picture, as segments are found
        in."""
        with self._computing.hold(deadline):
            matrix = self.networks.frame_similarity(query.regions, reference.regions)
            own = [self.networks.self_similarity(video.regions) for video in (query, reference)]
            return self._without_blank(relative_similarity(matrix, *own), query, reference)

    def use_blank(self, blank: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take stored vectors [B, D] of pictures of one colour, so that they are not computed; [0,
        0] where there are none. Returns them."""
        if len(blank):
            self._blank = blank
        return blank

    def _without_blank(
        self, matrix: NDArray[np.float64], query: EmbeddedVideo, reference: EmbeddedVideo
    ) -> NDArray[np.float64]:
        """Similarities in which frames of one colour are like none. Of frames with nine regions
        these tell enough, and how near to one colour the vectors of a trained network are, nobody
        has measured."""
        if query.regions.shape[1] != 1 or not self._untrained:
            return matrix
        if self._blank is None:
            networks: Any = self.networks  # of any kind
            regions = networks.regions(blank_pictures(self._crop_px))
            self._blank = mean_directions(networks.vectors(networks.embed(regions)))
        shown = matrix.copy()
        for video, rows in ((query, shown), (reference, shown.T)):
            vectors = mean_directions(self.networks.vectors(video.regions))
            rows[is_blank_of_copies(vectors, self._blank)] = -1
        return shown

    def matching_segments(
        self, query: EmbeddedVideo, reference: EmbeddedVideo, deadline: Deadline = NEVER
    ) -> tuple[Segment, ...]:
        """Parts of both that show the same, the longest and surest first."""
        return self.segments_in(
            self.relative_similarity(query, reference, deadline), query.clock, reference.clock
        )

    def segments_in(
        self, values: NDArray[np.float64], query: FrameTimes, reference: FrameTimes
    ) -> tuple[Segment, ...]:
        """The segments of a matrix that `relative_similarity` gave, for frames of these times."""
        fps = self.sampling.fps
        aligned = align_timed(values, query, reference, threshold=self.frame_threshold, fps=fps)
        segments = [
            Segment(
                *query.span_s(*part.query, fps),
                *reference.span_s(*part.reference, fps),
                part.score,
                part.certain,
            )
            for part in aligned
        ]
        longer = [widened(segment, query, reference, fps=fps) for segment in segments]
        return tuple(clearest(longer))

    def _video(self, path: Path) -> SampledFeatures:
        outcome = self._reader.read([path], limits=self.limits, deadline=NEVER)[path]
        if isinstance(outcome, VideoError):
            raise outcome
        return outcome


def _similarities(scores: NDArray[np.float32]) -> list[float]:
    if not (np.abs(scores) <= 1.01).all():  # regions in bfloat16 have norms of up to 1.004
        raise ArgumentError("the similarity is not in [-1, 1]")
    return [float(score) for score in scores]
