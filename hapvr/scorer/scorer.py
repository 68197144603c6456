"""Similarity of raw video files: decode, regions, whitening, network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from hapvr.errors import ArgumentError, VideoError
from hapvr.model.settings import NUM_REGIONS
from hapvr.progress import Progress, no_progress
from hapvr.scorer.access import Access, ComputeLock, Deadline
from hapvr.scorer.blank import blank_pictures, is_blank_of_copies, mean_directions
from hapvr.scorer.calibration import Calibration
from hapvr.scorer.course import course_of_segment, shown_parts
from hapvr.scorer.embedded import EmbeddedVideo
from hapvr.scorer.pairs import PairRequest, PairScore
from hapvr.scorer.requests import RequestVideos
from hapvr.scorer.segments import (
    DEFAULT_THRESHOLD,
    FrameTimes,
    Segment,
    best_run,
    clearest,
    relative_similarity,
)
from hapvr.scorer.sparse_segments import align_timed, widened
from hapvr.scorer.steady_parts import timed
from hapvr.scorer.videos import PictureSettings, SampledFeatures, VideoReader
from hapvr.settings import ServingConfig

if TYPE_CHECKING:
    from hapvr.scorer.onnx_networks import ONNXNetworks
    from hapvr.scorer.plain_networks import PlainNetworks
    from hapvr.scorer.torch_networks import TorchNetworks

    AnyNetworks = PlainNetworks | ONNXNetworks | TorchNetworks
    """What `PairNetworks` describes; the embedding that they take is their own."""

NEVER = Deadline(None)


class FramesAlone(NamedTuple):
    """What is known of the frames of a video by themselves."""

    similarity: NDArray[np.floating]
    """[T], similarity of each frame with itself"""
    is_blank: NDArray[np.bool_]
    """[T], frames that are like no other because they show one colour"""


class VideoScorer:
    """Scores pairs of videos with a trained network. Keeps the features of the last videos; threads
    may share it."""

    def __init__(
        self,
        networks: AnyNetworks,
        *,
        pictures: PictureSettings,
        calibration: Calibration | None,
        limits: ServingConfig,
        warning: str,
        untrained: bool = False,
    ) -> None:
        """warning: a sentence that goes with every answer, e.g. that the weights are random; empty
        where there is none.
        untrained: whether features are compared as the frozen network gives them."""
        self.networks = networks
        self.sampling = pictures.sampling
        self.calibration = calibration
        self.limits = limits
        self.warning = warning
        self._crop_px = pictures.crop_px
        self.untrained = untrained
        self._blank: NDArray[np.float32] | None = None
        self._frames_alone = WeakKeyDictionary[EmbeddedVideo, FramesAlone]()
        self._computing = ComputeLock()
        self._reader = VideoReader(networks.regions, pictures=pictures, computing=self._computing)

    def features(self, path: Path) -> NDArray[np.floating]:
        """Region features [T, 9, D] of a file. Raises VideoError."""
        regions = self._video(path).regions
        return regions[:, :NUM_REGIONS] if self.networks.needs_extras else regions

    def frame_similarity(self, query: Path, reference: Path) -> NDArray[np.float32]:
        """[T, T'] in [-1, 1], before the comparator. Raises VideoError."""
        of_query = self.embed(self._video(query))
        of_reference = self.embed(self._video(reference))
        return self.networks.frame_similarity(of_query.regions, of_reference.regions)

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
        """One row per pair, in order; videos that cannot be used or exceed a limit give rows with
        an error.

        pairs: paths, or http(s) URLs of hosts that `access` allows.
        limits: those of the model by default.
        access: to all files and no hosts by default."""
        limits = limits or self.limits
        deadline = Deadline(limits.request_timeout_s)
        named = [(str(query), str(reference)) for query, reference in pairs]
        allowed = named[: limits.max_pairs]
        rows: list[PairScore] = []
        names = [name for pair in allowed for name in pair]
        with self.open_videos(names, limits=limits, access=access, deadline=deadline) as videos:
            request = PairRequest(self, videos, limits, deadline, segments=segments)
            for number, (query, reference) in enumerate(allowed):
                progress(number, len(allowed))
                rows.append(request.score(query, reference))

        refused = (
            f"too_many_pairs: {len(named)} pairs; at most {limits.max_pairs} are "
            "scored in a request"
        )
        for query, reference in named[limits.max_pairs :]:
            rows.append(PairScore(query, reference, None, error=refused, warning=self.warning))
        progress(len(allowed), len(allowed))
        return rows

    def probability(self, similarity: float, *, one_course: bool = False) -> float | None:
        """The probability of a match, in [0, 1]; None from a model without calibration. one_course:
        see `PairScore`."""
        if self.calibration is None:
            return None
        return self.calibration.probability(similarity, one_course=one_course)

    def open_videos(
        self,
        names: Sequence[str],
        *,
        limits: ServingConfig | None = None,
        access: Access | None = None,
        deadline: Deadline = NEVER,
        crops: bool = False,
    ) -> RequestVideos:
        """Features of files and URLs, read a group ahead; a context manager. Defaults are those of
        `score_pairs`. crops: read the crops of a query, too."""
        return RequestVideos(
            reader=self._reader,
            names=list(dict.fromkeys(names)),
            limits=limits or self.limits,
            access=access or Access(),
            deadline=deadline,
            crops=crops,
        )

    def sampled(self, jpegs: Sequence[bytes]) -> SampledFeatures:
        """Features of frames from the sampling, T >= 1, and of their crops."""
        clock = FrameTimes(tuple(place / self.sampling.fps for place in range(len(jpegs))))
        return self._reader.features(jpegs, clock, NEVER, crops=True)

    def embed(self, video: SampledFeatures, deadline: Deadline = NEVER) -> EmbeddedVideo:
        """The embedding of a video's features [T, R, D], in any floating dtype."""
        with self._computing.hold(deadline):
            return video.embedded(self.networks.embed(video.regions))

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
        """The number in [-1, 1] on which the calibration of pairs of files is fitted: the
        similarity of a trained network; for an untrained model, the best similarity of two frames
        in a row."""
        if not self.untrained:
            return self.similarity(query, reference, deadline)
        return best_run(self.relative_similarity(query, reference, deadline))

    def similarities(
        self, queries: Sequence[EmbeddedVideo], reference: EmbeddedVideo, deadline: Deadline = NEVER
    ) -> list[float]:
        """As `similarity`, of each query, at least one."""
        with self._computing.hold(deadline):
            scores = self.networks.similarities(
                [query.regions for query in queries], [reference.regions]
            )
        return _similarities(scores[:, 0])

    def comparisons(
        self, query: EmbeddedVideo, references: Sequence[EmbeddedVideo], deadline: Deadline = NEVER
    ) -> list[tuple[float, NDArray[np.float64]]]:
        """As `similarity`, of each reference, with the `relative_similarity` of its frames."""
        with self._computing.hold(deadline):
            scores, matrices = self.networks.comparisons(
                query.regions, [reference.regions for reference in references]
            )
            relative = [
                self._relative(matrix, query, reference)
                for reference, matrix in zip(references, matrices, strict=True)
            ]

        return list(zip(_similarities(scores), relative, strict=True))

    @property
    def frame_threshold(self) -> float:
        """Relative frame similarity from which on two frames count as the same in segments: the
        fitted one, or the default."""
        if self.calibration is None or self.calibration.frame_threshold is None:
            return DEFAULT_THRESHOLD
        return self.calibration.frame_threshold

    def relative_similarity(
        self, query: EmbeddedVideo, reference: EmbeddedVideo, deadline: Deadline = NEVER
    ) -> NDArray[np.float64]:
        """Frame similarities [T, T'] in [-1, 1], 1 for the same picture, as segments are found
        in."""
        with self._computing.hold(deadline):
            matrix = self.networks.frame_similarity(query.regions, reference.regions)
            return self._relative(matrix, query, reference)

    def use_blank(self, blank: NDArray[np.float32]) -> NDArray[np.float32]:
        """Use stored vectors [B, D] of pictures of one colour, so that they need not be computed;
        [0, 0] where there are none. Returns them."""
        if len(blank):
            self._blank = blank
            self._frames_alone.clear()
        return blank

    def _relative(
        self, matrix: NDArray[np.floating], query: EmbeddedVideo, reference: EmbeddedVideo
    ) -> NDArray[np.float64]:
        """Relative similarities of the frames of two videos, where frames of one colour are like
        none. matrix: [T, T'], from the network."""
        of_query = self._alone(query)
        of_reference = self._alone(reference)
        values = relative_similarity(matrix, of_query.similarity, of_reference.similarity)
        values[of_query.is_blank] = -1
        values[:, of_reference.is_blank] = -1
        return values

    def _alone(self, video: EmbeddedVideo) -> FramesAlone:
        """What is known of the frames of a video by themselves, kept from earlier comparisons: a
        search compares its query with each candidate, and a collection each of its videos with
        many."""
        kept = self._frames_alone.get(video)
        if kept is None:
            kept = FramesAlone(self.networks.self_similarity(video.regions), self._is_blank(video))
            self._frames_alone[video] = kept

        return kept

    def _is_blank(self, video: EmbeddedVideo) -> NDArray[np.bool_]:
        """[T], which frames show one colour. Of frames with nine regions none does: their regions
        tell enough, and it was not measured how near to one colour the vectors of a trained network
        come."""
        if video.regions.shape[1] != 1 or not self.untrained:
            return np.zeros(len(video), bool)
        if self._blank is None:
            networks: Any = self.networks  # of any kind
            regions = networks.regions(blank_pictures(self._crop_px))
            self._blank = mean_directions(networks.vectors(networks.embed(regions)))

        vectors = mean_directions(self.networks.vectors(video.regions))
        return is_blank_of_copies(vectors, self._blank)

    def matching_segments(
        self, query: EmbeddedVideo, reference: EmbeddedVideo, deadline: Deadline = NEVER
    ) -> tuple[Segment, ...]:
        """Parts of both that show the same, the longest and surest first."""
        values = self.relative_similarity(query, reference, deadline)
        return self.segments_in(values, query, reference)

    def segments_in(
        self, values: NDArray[np.float64], query: EmbeddedVideo, reference: EmbeddedVideo
    ) -> tuple[Segment, ...]:
        """The segments of the matrix that `relative_similarity` gave for two videos."""

        def has_one_course(part: Segment) -> bool:
            return course_of_segment(self, query, reference, part) is not None

        parts = self.aligned_parts(values, query.clock, reference.clock)
        return tuple(shown_parts(self, query, parts, has_one_course))

    def aligned_parts(
        self, values: NDArray[np.float64], query: FrameTimes, reference: FrameTimes
    ) -> list[Segment]:
        """Parts of the matrix that `relative_similarity` gave for frames of these times, the
        longest and surest first; also those that may be other moments of one scene."""
        fps = self.sampling.fps
        aligned = align_timed(values, query, reference, threshold=self.frame_threshold, fps=fps)
        segments = [timed(part, query, reference, fps=fps) for part in aligned]
        longer = [widened(segment, query, reference, fps=fps) for segment in segments]
        return clearest(longer)

    def _video(self, path: Path) -> SampledFeatures:
        outcome = self._reader.read([path], limits=self.limits, deadline=NEVER)[path]
        if isinstance(outcome, VideoError):
            raise outcome
        return outcome


def _similarities(scores: NDArray[np.float32]) -> list[float]:
    if not (np.abs(scores) <= 1.01).all():  # regions in bfloat16 have norms of up to 1.004
        raise ArgumentError("the similarity is not in [-1, 1]")
    return [float(score) for score in scores]
