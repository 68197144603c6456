"""How VVS trains: an anchor with distractor frames inserted, each labelled, finds its positive; the
four losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.config import TrainConfig
from hapvr.losses.reductions import mean_where
from hapvr.model.family import split_extras
from hapvr.model.settings import doubled_length
from hapvr.model.similarity import chamfer
from hapvr.model.vvs import VvsNetwork
from hapvr.seeding import derive_seed, numpy_rng, seeded
from hapvr.train.batch import STRENGTHS, Batch

WEIGHTS = {"video": 1.0, "frame": 1.0, "saliency": 1.0, "distractor": 0.5}
"""The weights of the losses in the total."""

MARGIN = 0.5
"""The margin of both triplet losses."""


@dataclass(frozen=True)
class Triplets:
    """Which clips of a batch the losses compare.

    anchors: bool [A], the anchors that have a negative; positives, negatives: int64 [n], the clips
    of these n anchors."""

    anchors: Tensor
    positives: Tensor
    negatives: Tensor


class SuppressionTraining(nn.Module):
    """Clips to the four losses of VVS, in one process: normalisation, negatives and distractors are
    of a whole batch.

    With labelled pairs, negatives and inserted frames come from the batch's source. With views, the
    anchor is the weak view of a video and the positive its strong view; the negative of an anchor
    is the clip of the batch with the most similar vector that shares no video and no host with it,
    and the distractor frames are those of a small magnitude of other videos in the batch. Number
    and places of insertions are drawn once per batch, and batch normalisation sees the maps of all
    anchors at once."""

    def __init__(self, network: VvsNetwork, settings: TrainConfig) -> None:
        super().__init__()
        self.network = network
        self._seed = settings.seed

    def forward(self, batch: Batch, batch_number: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted losses of VVS by name; triplet losses only if there is a triplet."""
        network = self.network
        regions, pooled, injected = self._anchor_clips(batch, batch_number)
        clips = batch.regions
        if network.needs_extras:
            clips, _, _ = split_extras(clips, extras_dims=network.extras_dims)
        with seeded(derive_seed(self._seed, "dropout", batch_number, 0), clips.device):
            regions, anchors, confidence_logits, saliency = network.anchors(regions, pooled)
            vectors = network.vectors(clips)

        triplets = triplets_of(batch, anchors, vectors)

        terms: dict[str, Tensor] = {}
        chosen = triplets.anchors
        if len(triplets.positives):
            positives = triplets.positives
            negatives = triplets.negatives
            if network.topic is not None:
                terms["video"] = video_triplet(
                    (anchors[chosen] * vectors[positives]).sum(-1),
                    (anchors[chosen] * vectors[negatives]).sum(-1),
                )

            if saliency is not None:
                terms |= self._saliency_terms(
                    regions[chosen], clips[positives], clips[negatives], saliency[chosen]
                )

        if injected is not None and confidence_logits is not None:
            terms["distractor"] = distractor_loss(confidence_logits, injected)

        # a batch without any term has a loss, too, and every weight has a gradient
        nothing = 0 * sum((weight.sum() for weight in network.parameters()), start=anchors.sum())
        total = sum((WEIGHTS[name] * term for name, term in terms.items()), start=nothing)
        return total, {name: term.detach() for name, term in terms.items()}

    def _saliency_terms(
        self, anchors: Tensor, positives: Tensor, negatives: Tensor, saliency: Tensor
    ) -> dict[str, Tensor]:
        """The losses of temporal saliency. anchors, positives, negatives: regions [n, T, R, D];
        saliency: weights [n, T] of the frames of the anchors."""
        settings = self.network.settings
        terms: dict[str, Tensor] = {}
        maps = self.network.refined_maps(anchors, positives)
        if settings.frame_loss:
            terms["frame"] = frame_loss(maps, self.network.refined_maps(anchors, negatives))
        salient = saliency_labels(
            maps, num_frames=anchors.shape[1], rule=settings.saliency.label_rule
        )
        terms["saliency"] = saliency_loss(saliency, salient)
        return terms

    def _anchor_clips(
        self, batch: Batch, batch_number: int
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Regions of the anchors, with distractor frames inserted; if distractors are told from
        content, also their pooled vectors and the label of each frame."""
        rows = batch.anchor_rows
        network = self.network
        if not network.needs_extras:
            return batch.regions[rows], None, None

        regions, pooled, magnitude = split_extras(batch.regions, extras_dims=network.extras_dims)
        easy_frames_given = batch.easy_frames
        if easy_frames_given is not None and not easy_frames_given.shape[1]:
            return regions[rows], None, None

        num_frames = regions.shape[1]
        source = self._insertion(num_frames, batch_number)
        count = len(source) - num_frames
        easy: tuple[Tensor, Tensor]
        if easy_frames_given is not None:
            easy = self._given_easy(easy_frames_given.to(regions.dtype), count)
            own = torch.ones_like(magnitude[rows], dtype=torch.int8)
        else:
            is_easy = easy_frames(magnitude, max_magnitude=network.settings.max_magnitude)
            drawn = self._draw_easy(is_easy, batch.labels[rows], count, batch_number)
            easy = (regions.flatten(0, 1)[drawn], pooled.flatten(0, 1)[drawn])
            # One of its own frames that may be a distractor too has no label.
            own = torch.ones_like(is_easy[rows], dtype=torch.int8).masked_fill(is_easy[rows], -1)

        easy_regions, easy_pooled = easy
        return (
            inserted(regions[rows], easy_regions, source),
            inserted(pooled[rows], easy_pooled, source),
            inserted(own, own.new_zeros(()), source),
        )

    @property
    def _inserts_several(self) -> bool:
        """Whether several frames are inserted, and not one that stands still."""
        return self.network.settings.injection == "scattered"

    def _given_easy(self, frames: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Regions [A, n, R, D] and pooled vectors [A, n, C] of the first `count` of the easy frames
        [A, E, R + k, D] of a batch, or of the first one as often."""
        regions, pooled, _ = split_extras(frames, extras_dims=self.network.extras_dims)
        if self._inserts_several:
            picked = torch.arange(count)
        else:
            picked = torch.zeros(count, dtype=torch.int64)

        return regions[:, picked], pooled[:, picked]

    def _draw_easy(self, is_easy: Tensor, labels: Tensor, count: int, batch_number: int) -> Tensor:
        """int64 [A, n], frames among those of all clips that are easy, bool [b, T].

        labels: int8 [A, b], -1 for the clips that are negatives of an anchor."""
        drawn = draw_distractors(
            is_easy,
            labels,
            parts=(self._seed, "injection", batch_number, 0),
            count=count if self._inserts_several else 1,
        )
        return drawn if self._inserts_several else drawn.expand(-1, count)

    def _insertion(self, num_frames: int, batch_number: int) -> Tensor:
        """Where the frames of anchors come from, see `block_source`.

        The number n of inserted frames is uniform between `injected_rates` of T, rounded down, both
        included. A block stands before frame p, uniform in 0 to T - n; scattered frames take any n
        places of the T + n."""
        settings = self.network.settings
        rng = numpy_rng(self._seed, "injection", batch_number, 0)
        fewest = int(min(settings.injected_rates) * num_frames)
        most = int(max(settings.injected_rates) * num_frames)
        count = int(rng.integers(fewest, most + 1))
        if settings.injection == "block":
            return block_source(num_frames, count, int(rng.integers(num_frames - count + 1)))
        places = rng.choice(num_frames + count, count, replace=False)
        return scattered_source(num_frames, [int(place) for place in places])


def triplets_of(batch: Batch, anchors: Tensor, vectors: Tensor) -> Triplets:
    """The positive and the negative of each anchor: the negative of the batch's source, the first
    of several, or the clip that `hardest_negatives` finds. anchors: unit vectors [A, D]; vectors:
    of all clips."""
    rows = batch.anchor_rows
    if batch.clips_per_item > len(STRENGTHS):
        negative = rows + len(STRENGTHS)
        has_negative = torch.ones_like(rows, dtype=torch.bool)
    else:
        negative, has_negative = hardest_negatives(anchors, vectors, batch.labels[rows])

    return Triplets(has_negative, rows[has_negative] + 1, negative[has_negative])


@torch.no_grad()
def hardest_negatives(anchors: Tensor, clips: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each anchor the clip with the most similar vector among its negatives, and whether it has
    one. anchors: unit vectors [A, D]; clips: unit vectors [b, D]; labels: int8 [A, b], -1 for
    negatives. Returns int64 [A], and bool [A]."""
    is_negative = labels < 0
    similarity = (anchors @ clips.T).masked_fill(~is_negative, -torch.inf)
    return similarity.argmax(1), is_negative.any(1)


@torch.no_grad()
def easy_frames(magnitude: Tensor, *, max_magnitude: float | None) -> Tensor:
    """Which frames count as distractors, bool [b, T], one at least: those of a magnitude [b, T]
    below the limit. max_magnitude: the limit; None: the quantile 0.09 of these frames."""
    limit = torch.quantile(magnitude.float(), 0.09) if max_magnitude is None else max_magnitude
    easy = magnitude < limit
    return easy if bool(easy.any()) else magnitude == magnitude.min()


def draw_distractors(
    easy: Tensor, labels: Tensor, *, parts: tuple[int | str, ...], count: int = 1
) -> Tensor:
    """The frames that are inserted into each anchor, as indices int64 [A, count] into the frames of
    all clips in order. easy: bool [b, T]; labels: int8 [A, b]. Frames are of negatives of the
    anchor, or of any clip where those have none. parts: seed the draw."""
    rng = numpy_rng(*parts, "frames")
    rows = []
    for label in labels:
        of_negatives = easy & (label < 0)[:, None]
        usable = of_negatives if bool(of_negatives.any()) else easy
        candidates = usable.flatten().nonzero().flatten()
        drawn = [int(rng.integers(len(candidates))) for _ in range(count)]
        rows.append(candidates[drawn])

    return torch.stack(rows)


def block_source(num_frames: int, count: int, position: int) -> Tensor:
    """Where the frames of a clip come from after `count` frames in one piece were inserted before
    frame `position`. position: num_frames puts them behind the last. Returns int64 [T + n], the
    frame of the clip, or -1 for an inserted one."""
    frames = torch.arange(num_frames)
    return torch.cat([frames[:position], torch.full((count,), -1), frames[position:]])


def scattered_source(num_frames: int, places: Sequence[int]) -> Tensor:
    """Where the frames of a clip come from after frames were inserted at these places of the longer
    clip, as of `block_source`."""
    source = torch.full((num_frames + len(places),), -1)
    is_own = torch.ones(len(source), dtype=torch.bool)
    is_own[list(places)] = False
    source[is_own] = torch.arange(num_frames)
    return source


def inserted(clips: Tensor, values: Tensor, source: Tensor) -> Tensor:
    """clips [N, T, ...] with values [N, n, ...], or of a shape like it, where source is -1. Returns
    [N, T + n, ...]."""
    source = source.to(clips.device)
    longer = clips[:, source.clamp(min=0)]
    longer[:, source < 0] = values.to(longer.dtype)
    return longer


def video_triplet(positive: Tensor, negative: Tensor) -> Tensor:
    """L_vi: mean over anchors of max(0, s- - s+ + MARGIN). positive, negative: the similarities s+
    and s- [A] in [-1, 1]. Returns []."""
    return (negative - positive + MARGIN).clamp(min=0).mean()


def overshoot(maps: Tensor) -> Tensor:
    """psi: how far the raw cells of a map leave [-1, 1], summed; the mean over maps. maps: [A, t,
    t']. Returns []."""
    return (maps - F.hardtanh(maps)).abs().sum((1, 2)).mean()


def frame_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """L_fr = L_tri + (psi(M+) + psi(M-)) / 2, L_tri: `video_triplet` of the Chamfer similarities of
    clipped maps. positive, negative: raw maps [A, t, t'] of the comparator. Returns []."""
    scores = [chamfer(F.hardtanh(maps)) for maps in (positive, negative)]
    return video_triplet(scores[0], scores[1]) + 0.5 * (overshoot(positive) + overshoot(negative))


@torch.no_grad()
def saliency_labels(
    refined: Tensor, *, num_frames: int, rule: Literal["clipped", "plain"] = "clipped"
) -> Tensor:
    """Labels 1 (salient) and 0 of the anchor's frames.

    refined: raw frame similarities [A, t, t'] of anchor and positive after the comparator. A row is
    salient if its largest similarity exceeds a threshold. rule `clipped`: the mean over rows of the
    largest ones clipped to [-1, 1], and the best row is salient in any case (release); `plain`: the
    mean of the raw ones (paper). num_frames: T of the anchor; row k stands for the frames that
    nearest-neighbour stretching gives it, where an anchor of fewer than four frames counts as often
    as the comparator saw it. Returns float [A, T].
    """
    best = refined.amax(-1)
    if rule == "clipped":
        threshold = F.hardtanh(refined).amax(-1).mean(-1, keepdim=True)
        salient = (best > threshold) | (best == best.amax(-1, keepdim=True))
    else:
        salient = best > best.mean(-1, keepdim=True)

    rows = (
        torch.arange(num_frames, device=refined.device)
        * refined.shape[1]
        // doubled_length(num_frames)
    )
    return salient[:, rows].to(refined.dtype)


def saliency_loss(weights: Tensor, labels: Tensor) -> Tensor:
    """L_sa: binary cross-entropy of saliency weights in [0, 1] against labels 0 and 1, both [A, T],
    mean over frames."""
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    chosen = torch.where(labels > 0, weights, 1 - weights)
    # torch's own function refuses to run under autocast
    return -chosen.clamp(min=torch.finfo(torch.float32).tiny).log().mean()


def distractor_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """L_di: binary cross-entropy of confidences against labels 1 (content), 0 (distractor) and -1
    (ignored). logits: [A, T], confidences before the sigmoid; labels: int8 [A, T]. Mean over frames
    with a label; 0 without any."""
    targets = labels.clamp(min=0).to(logits.dtype)
    return mean_where(
        F.binary_cross_entropy_with_logits(logits, targets, reduction="none"), labels >= 0
    )
