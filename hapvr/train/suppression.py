"""How VVS trains: an anchor with distractor frames inserted, each labelled, finds its positive."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hapvr.config import TrainConfig
from hapvr.losses.suppression import (
    WEIGHTS,
    distractor_loss,
    frame_loss,
    saliency_labels,
    saliency_loss,
    video_triplet,
)
from hapvr.model.frame_extras import split_extras
from hapvr.model.vvs.network import VvsNetwork
from hapvr.seeding import numpy_rng
from hapvr.train.batch import STRENGTHS, Batch
from hapvr.train.family import FamilyTraining, StepOutput, drawing_by

EASY_RATE = 0.09
"""Without a limit on the magnitude, this part of a batch's frames counts as distractors."""


class SuppressionTraining(FamilyTraining):
    """Clips to the four losses of VVS.

    The anchor is the weak view of a video and the positive its strong view. The negative of an anchor is the clip of the
    batch with the most similar vector that shares no video and no donor with it. The distractor frames are those of a small
    magnitude of other videos in the batch, so no list of them is kept; number and places of insertions are drawn once per
    batch, and batch normalisation sees the maps of all anchors of a process at once.

    It trains in one process: normalisation, negatives and distractor frames are of all clips of a batch.
    """

    network: VvsNetwork

    def __init__(self, network: VvsNetwork, settings: TrainConfig) -> None:
        super().__init__(network)
        self._settings = settings

    def forward(self, batch: Batch, batch_number: int = 0) -> StepOutput:
        """The losses of VVS, weighed and by name; those of triplets where there is a triplet."""
        network, regions, labels = self.network, batch.regions, batch.labels
        rows = torch.arange(0, len(regions), len(STRENGTHS), device=regions.device)
        pooled = injected = None
        if network.needs_extras:
            regions, pooled, magnitude = split_extras(regions, extras_dims=network.extras_dims)
            clips, pooled, injected = self._with_distractors(rows, regions, pooled, magnitude, labels, batch_number)
        else:
            clips = regions[rows]
        with drawing_by(self._settings.seed, "dropout", batch_number, 0, device=regions.device):
            anchors = network.anchors(clips, pooled)
            vectors = network.vectors(regions)
        negative, has_negative = hardest_negatives(anchors.vectors, vectors, labels[rows])
        usable = has_negative.nonzero().flatten()
        positive, negative = rows[usable] + 1, negative[usable]
        terms: dict[str, Tensor] = {}
        if len(usable) and network.topic is not None:
            similar = [(anchors.vectors[usable] * vectors[other]).sum(-1) for other in (positive, negative)]
            terms["video"] = video_triplet(similar[0], similar[1])
        if len(usable) and anchors.saliency is not None:
            clips = anchors.regions[usable]
            maps = network.refined_maps(clips, regions[positive])
            if network.settings.frame_loss:
                terms["frame"] = frame_loss(maps, network.refined_maps(clips, regions[negative]))
            rule = network.settings.saliency.label_rule
            salient = saliency_labels(maps, num_frames=clips.shape[1], rule=rule)
            terms["saliency"] = saliency_loss(anchors.saliency[usable], salient)
        if injected is not None and anchors.confidence_logits is not None:
            terms["distractor"] = distractor_loss(anchors.confidence_logits, injected)
        nothing = 0 * sum((weight.sum() for weight in network.parameters()), start=anchors.vectors.sum())
        total = sum((WEIGHTS[name] * term for name, term in terms.items()), start=nothing)
        return total, {name: term.detach() for name, term in terms.items()}

    def _with_distractors(
        self, rows: Tensor, regions: Tensor, pooled: Tensor, magnitude: Tensor, labels: Tensor, batch_number: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The clips at `rows` with distractor frames inserted, their pooled vectors, and the label of each frame."""
        settings, parts = self.network.settings, (self._settings.seed, "injection", batch_number, 0)
        source = draw_source(regions.shape[1], settings.injected_rates, numpy_rng(*parts))
        easy = easy_frames(magnitude, max_magnitude=settings.max_magnitude)
        chosen = draw_distractors(easy, labels[rows], parts=parts).expand(-1, int((source < 0).sum()))
        clips = inserted(regions[rows], regions.flatten(0, 1)[chosen], source)
        vectors = inserted(pooled[rows], pooled.flatten(0, 1)[chosen], source)
        # An own frame that may be a distractor too has no label.
        own = torch.ones_like(easy[rows], dtype=torch.int8).masked_fill(easy[rows], -1)
        return clips, vectors, inserted(own, own.new_zeros(()), source)


@torch.no_grad()
def hardest_negatives(anchors: Tensor, clips: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each anchor the clip with the most similar vector among its negatives, and whether it has one.

    anchors: unit vectors [A, D]; clips: unit vectors [b, D]; labels: int8 [A, b], -1 for negatives. Returns int64 [A], and
    bool [A].
    """
    similarity = (anchors @ clips.T).masked_fill(labels >= 0, -torch.inf)
    return similarity.argmax(1), (labels < 0).any(1)


@torch.no_grad()
def easy_frames(magnitude: Tensor, *, max_magnitude: float | None) -> Tensor:
    """Which frames count as distractors, bool [b, T], one at least: those of a magnitude [b, T] below the limit.

    max_magnitude: the limit; None: the quantile EASY_RATE of these frames.
    """
    limit = torch.quantile(magnitude.float(), EASY_RATE) if max_magnitude is None else max_magnitude
    easy = magnitude < limit
    return easy | (magnitude == magnitude.min()) if not bool(easy.any()) else easy


def draw_distractors(easy: Tensor, labels: Tensor, *, parts: tuple[int | str, ...]) -> Tensor:
    """The frame that is inserted into each anchor, as indices int64 [A, 1] into the frames of all clips in order.

    easy: bool [b, T]; labels: int8 [A, b]. Frames are of negatives of the anchor, or of any clip where those have none.
    parts: seed the draw.
    """
    rng = numpy_rng(*parts, "frames")
    rows = []
    for label in labels:
        candidates = (easy & (label < 0)[:, None]).flatten().nonzero().flatten()
        if not len(candidates):
            candidates = easy.flatten().nonzero().flatten()
        drawn = torch.from_numpy(rng.integers(len(candidates), size=1)).to(candidates.device)
        rows.append(candidates[drawn])
    return torch.stack(rows)


def block_source(num_frames: int, count: int, position: int) -> Tensor:
    """Where the frames of a clip come from after `count` frames in one piece were inserted before frame `position`.

    position: num_frames puts them behind the last. Returns int64 [T + n], the frame of the clip, or -1 for an inserted one.
    """
    frames = torch.arange(num_frames)
    return torch.cat([frames[:position], torch.full((count,), -1), frames[position:]])


def inserted(clips: Tensor, values: Tensor, source: Tensor) -> Tensor:
    """clips [N, T, ...] with values [N, n, ...], or of a shape like it, where source is -1. Returns [N, T + n, ...]."""
    source = source.to(clips.device)
    longer = clips[:, source.clamp(min=0)]
    longer[:, source < 0] = values.to(longer.dtype)
    return longer


def draw_source(num_frames: int, rates: tuple[float, float], rng: np.random.Generator) -> Tensor:
    """Draw how many frames are inserted and where, see `block_source`.

    Their number n is uniform between the two rates of T = num_frames, rounded down, both included; their block stands before
    frame p, uniform in 0 to T - n.
    """
    fewest, most = (int(rate * num_frames) for rate in sorted(rates))
    count = int(rng.integers(fewest, most + 1))
    return block_source(num_frames, count, int(rng.integers(num_frames - count + 1)))
