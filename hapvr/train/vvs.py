"""How VVS trains: an anchor with distractor frames inserted, each labelled, finds its positive; the
four losses."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.config import TrainConfig
from hapvr.losses.objective import mean_where
from hapvr.model.family import split_extras
from hapvr.model.settings import doubled_length
from hapvr.model.similarity import chamfer
from hapvr.model.vvs import VvsNetwork
from hapvr.seeding import derive_seed, numpy_rng, seeded
from hapvr.train.batch import Batch

WEIGHTS = {"video": 1.0, "frame": 1.0, "saliency": 1.0, "distractor": 0.5}
"""Of the losses in the total."""

MARGIN = 0.5
"""Of both triplet losses."""


class SuppressionTraining(nn.Module):
    """Clips to the four losses of VVS, in one process: normalisation, negatives and distractors are
    of a whole batch.

    The anchor is the weak view of a video and the positive its strong view. The negative of an
    anchor is the clip of the batch with the most similar vector that shares no video and no donor
    with it. The distractor frames are those of a small magnitude of other videos in the batch, so
    no list of them is kept; number and places of insertions are drawn once per batch, and batch
    normalisation sees the maps of all anchors at once."""

    def __init__(self, network: VvsNetwork, settings: TrainConfig) -> None:
        super().__init__()
        self.network, self._seed = network, settings.seed

    def forward(self, batch: Batch, batch_number: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
        """The losses of VVS, weighed and by name; those of triplets where there is a triplet."""
        network, regions, labels = self.network, batch.regions, batch.labels
        rows = batch.anchor_rows
        pooled = injected = None
        if network.needs_extras:
            regions, pooled, magnitude = split_extras(regions, extras_dims=network.extras_dims)
            clips, pooled, injected = self._with_distractors(
                rows, regions, pooled, magnitude, labels, batch_number
            )
        else:
            clips = regions[rows]
        with seeded(derive_seed(self._seed, "dropout", batch_number, 0), regions.device):
            clips, anchors, confidence_logits, saliency = network.anchors(clips, pooled)
            vectors = network.vectors(regions)
        negative, has_negative = hardest_negatives(anchors, vectors, labels[rows])
        usable = has_negative.nonzero().flatten()
        positive, negative = rows[usable] + 1, negative[usable]
        terms: dict[str, Tensor] = {}
        if len(usable) and network.topic is not None:
            similar = [(anchors[usable] * vectors[other]).sum(-1) for other in (positive, negative)]
            terms["video"] = video_triplet(similar[0], similar[1])
        if len(usable) and saliency is not None:
            clips = clips[usable]
            maps = network.refined_maps(clips, regions[positive])
            if network.settings.frame_loss:
                terms["frame"] = frame_loss(maps, network.refined_maps(clips, regions[negative]))
            salient = saliency_labels(
                maps, num_frames=clips.shape[1], rule=network.settings.saliency.label_rule
            )
            terms["saliency"] = saliency_loss(saliency[usable], salient)
        if injected is not None and confidence_logits is not None:
            terms["distractor"] = distractor_loss(confidence_logits, injected)
        # a batch without any term has a loss, too, and every weight has a gradient
        nothing = 0 * sum((weight.sum() for weight in network.parameters()), start=anchors.sum())
        total = sum((WEIGHTS[name] * term for name, term in terms.items()), start=nothing)
        return total, {name: term.detach() for name, term in terms.items()}

    def _with_distractors(
        self,
        rows: Tensor,
        regions: Tensor,
        pooled: Tensor,
        magnitude: Tensor,
        labels: Tensor,
        batch_number: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The clips at `rows` with distractor frames inserted, their pooled vectors, and the label
        of each frame. The number n of frames is uniform between `injected_rates` of T, rounded
        down, both included; their block stands before frame p, uniform in 0 to T - n."""
        settings, num_frames = self.network.settings, regions.shape[1]
        parts = (self._seed, "injection", batch_number, 0)
        rng, (fewest, most) = (
            numpy_rng(*parts),
            (int(rate * num_frames) for rate in sorted(settings.injected_rates)),
        )
        count = int(rng.integers(fewest, most + 1))
        source = block_source(num_frames, count, int(rng.integers(num_frames - count + 1)))
        easy = easy_frames(magnitude, max_magnitude=settings.max_magnitude)
        chosen = draw_distractors(easy, labels[rows], parts=parts).expand(-1, count)
        clips = inserted(regions[rows], regions.flatten(0, 1)[chosen], source)
        vectors = inserted(pooled[rows], pooled.flatten(0, 1)[chosen], source)
        # An own frame that may be a distractor too has no label.
        own = torch.ones_like(easy[rows], dtype=torch.int8).masked_fill(easy[rows], -1)
        return clips, vectors, inserted(own, own.new_zeros(()), source)


@torch.no_grad()
def hardest_negatives(anchors: Tensor, clips: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each anchor the clip with the most similar vector among its negatives, and whether it has
    one. anchors: unit vectors [A, D]; clips: unit vectors [b, D]; labels: int8 [A, b], -1 for
    negatives. Returns int64 [A], and bool [A]."""
    return (anchors @ clips.T).masked_fill(labels >= 0, -torch.inf).argmax(1), (labels < 0).any(1)


@torch.no_grad()
def easy_frames(magnitude: Tensor, *, max_magnitude: float | None) -> Tensor:
    """Which frames count as distractors, bool [b, T], one at least: those of a magnitude [b, T]
    below the limit. max_magnitude: the limit; None: the quantile 0.09 of these frames."""
    limit = torch.quantile(magnitude.float(), 0.09) if max_magnitude is None else max_magnitude
    easy = magnitude < limit
    return easy if bool(easy.any()) else magnitude == magnitude.min()


def draw_distractors(easy: Tensor, labels: Tensor, *, parts: tuple[int | str, ...]) -> Tensor:
    """The frame that is inserted into each anchor, as indices int64 [A, 1] into the frames of all
    clips in order. easy: bool [b, T]; labels: int8 [A, b]. Frames are of negatives of the anchor,
    or of any clip where those have none. parts: seed the draw."""
    rng = numpy_rng(*parts, "frames")
    rows = []
    for label in labels:
        of_negatives = easy & (label < 0)[:, None]
        candidates = (
            (of_negatives if bool(of_negatives.any()) else easy).flatten().nonzero().flatten()
        )
        rows.append(candidates[int(rng.integers(len(candidates)))])
    return torch.stack(rows)[:, None]


def block_source(num_frames: int, count: int, position: int) -> Tensor:
    """Where the frames of a clip come from after `count` frames in one piece were inserted before
    frame `position`. position: num_frames puts them behind the last. Returns int64 [T + n], the
    frame of the clip, or -1 for an inserted one."""
    frames = torch.arange(num_frames)
    return torch.cat([frames[:position], torch.full((count,), -1), frames[position:]])


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
