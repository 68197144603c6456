"""VVS (Jo et al., AAAI 2024): one vector per video, in which frames without the video's topic
hardly count."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.model.family import FrameVectorNetwork, Mask, split_extras
from hapvr.model.network import Comparator, pad_to_min_frames
from hapvr.model.settings import (
    COMPARATOR_STEP,
    DistractorSettings,
    NetworkSettings,
    SaliencySettings,
    TopicSettings,
    VvsSettings,
    doubled_length,
)
from hapvr.model.similarity import frame_similarity

CHUNK_FRAMES = 128
"""Frames that embedding converts to float32 at once."""


class TemporalSaliency(nn.Module):
    """A residual bottleneck on the map of self-similarities, of which the diagonal goes through an
    encoder layer.

    `forward` works on whole maps, as training does, because batch normalisation there needs all of
    their cells. `windows` gives the same weights from the cells around the diagonal alone, once the
    statistics are fixed."""

    def __init__(self, settings: SaliencySettings) -> None:
        super().__init__()
        width = settings.width
        dims = 4 * width
        self.temperature = settings.temperature
        self.attention = settings.attention
        self.conv1 = nn.Conv2d(1, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, dims, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(dims)
        # With attention `frame` queries and keys have no effect and no gradient.
        self.encoder = nn.TransformerEncoderLayer(
            dims, 8, 2 * dims, settings.dropout, batch_first=True
        )

    def forward(self, similarity: Tensor) -> Tensor:
        """similarity: self-similarities [N, T, T]. Returns weights [N, T]."""
        maps = similarity.unsqueeze(1)
        hidden = F.pad(torch.relu(self.bn1(self.conv1(maps))), (1, 1, 1, 1), mode="replicate")
        states = torch.relu(self._rest(hidden) + maps)
        return self.weights_of_states(states.diagonal(dim1=2, dim2=3).transpose(1, 2))

    def windows(self, cells: Tensor) -> Tensor:
        """The states k_t of frames from their own windows. cells: [T, 3, 3]. Returns [T, 4 width],
        for `weights_of_states`."""
        maps = cells.unsqueeze(1)
        hidden = torch.relu(self.bn1(self.conv1(maps)))
        return torch.relu(self._rest(hidden) + maps[:, :, 1:2, 1:2]).flatten(1)

    def _rest(self, hidden: Tensor) -> Tensor:
        # Only 3 x 3 neighbourhoods are left here, so the edges of `hidden` are already those of its
        # frames.
        values: Tensor = self.bn3(self.conv3(torch.relu(self.bn2(self.conv2(hidden)))))
        return values

    def weights_of_states(self, states: Tensor) -> Tensor:
        """states: [..., 4 width], of all frames of a video in order. Returns weights [...]."""
        num_frames = states.shape[-2] if self.attention == "video" else 1
        encoded: Tensor = self.encoder(states.reshape(-1, num_frames, states.shape[-1]))
        return torch.sigmoid(encoded.mean(-1).view(states.shape[:-1]) / self.temperature)


def diagonal_cells(frames: Tensor, order: Tensor, first: int, last: int) -> Tensor:
    """Self-similarities around the diagonal of a video, for the frames from `first` to `last` - 1.
    frames: [T, R, D]; order: int64 [T''], the frames of the video by their index in `frames`. A
    cell beyond the first or last frame holds the frame at that edge. Returns [last - first, 3, 3]
    float32: similarities (Chamfer over regions) among the frames t - 1, t, t + 1."""
    around = torch.arange(first, last, device=order.device)[:, None] + torch.arange(
        -1, 2, device=order.device
    )
    windows = frames[order[around.clamp(0, len(order) - 1)]].float()
    return torch.einsum("tard,tbsd->tabrs", windows, windows).amax(-1).mean(-1)


class DistractorNetwork(nn.Module):
    """A confidence per frame that it shows content: three linear layers on its pooled vector.
    pooled_dims: C, before whitening."""

    def __init__(self, settings: DistractorSettings, *, pooled_dims: int) -> None:
        super().__init__()
        first, second = settings.hidden
        self.temperature = settings.temperature
        self.layer1 = nn.Linear(pooled_dims, first)
        self.layer2 = nn.Linear(first, second)
        self.layer3 = nn.Linear(second, 1)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, pooled: Tensor) -> Tensor:
        """pooled: [..., C] unit vectors. Returns logits [...] over the temperature; their sigmoid
        is the confidence."""
        hidden = self.dropout(torch.relu(self.layer1(pooled)))
        hidden = self.dropout(torch.relu(self.layer2(hidden)))
        logits: Tensor = self.layer3(hidden).squeeze(-1)
        return logits / self.temperature


class TopicGuidance(nn.Module):
    """A weight per frame from how near it is to the whole video: convolutions along time over an
    initial state."""

    def __init__(self, settings: TopicSettings) -> None:
        super().__init__()
        self.settings = settings
        if settings.refine:
            self.conv1 = nn.Conv1d(1, 32, 3, padding=1)
            self.conv2 = nn.Conv1d(32, 64, 3, padding=1)
            self.conv3 = nn.Conv1d(64, 128, 3, padding=1)
            self.last = nn.Conv1d(128, 1, 1)
            if settings.hierarchy:
                self.join = nn.Conv1d(32 + 64 + 128 + 1, 1, 1)

    def forward(self, means: Tensor) -> Tensor:
        """means: [N, T, D], of unit regions, not normalised. Returns weights [N, T]."""
        initial = self._initial(means)
        if not self.settings.refine:
            return initial
        first = self.conv1(initial.unsqueeze(1))
        second = self.conv2(torch.relu(first))
        third = self.conv3(torch.relu(second))
        refined: Tensor = self.last(torch.relu(third))
        if self.settings.hierarchy:
            refined = self.join(torch.cat([first, second, third, refined], dim=1))
        return torch.sigmoid(refined.squeeze(1) / self.settings.temperature)

    def _initial(self, means: Tensor) -> Tensor:
        """The state [N, T] before refinement. Random numbers are new ones in every training step,
        and always the same ones after it, so that a video has one vector."""
        if self.settings.initial == "constant":
            return means.new_full(means.shape[:2], 0.5)
        if self.settings.initial == "random":
            if self.training:
                return torch.rand_like(means[..., 0])
            fixed = torch.rand(means.shape[1], generator=torch.Generator().manual_seed(0))
            return fixed.to(means).expand(means.shape[:2])

        topic = F.normalize(means.mean(1), dim=-1)
        return (F.normalize(means, dim=-1) @ topic.unsqueeze(-1)).squeeze(-1)


class VvsNetwork(FrameVectorNetwork):
    """Distractor discrimination, temporal saliency and topic guidance, each of which the settings
    can leave out.

    An embedding holds weighted frame vectors [T, 1, D], 0 for frames left out, whose sum points
    where the vector of the video does.

    dims: D, values per region. extras_dims: C, values of a frame's pooled vector, 0 where
    distractor discrimination is off."""

    settings: VvsSettings

    def __init__(self, settings: VvsSettings, *, dims: int, extras_dims: int = 0) -> None:
        super().__init__()
        self.settings = settings
        self.dims = dims
        self.embedding_dims = dims
        self.extras_dims = extras_dims
        self.needs_extras = settings.distractor_discrimination
        self.distractor: DistractorNetwork | None = None
        self.comparator: Comparator | None = None
        self.saliency: TemporalSaliency | None = None
        self.topic: TopicGuidance | None = None
        if settings.distractor_discrimination:
            self.distractor = DistractorNetwork(settings.distractor, pooled_dims=extras_dims)
        if settings.temporal_saliency:
            self.comparator = Comparator(NetworkSettings())
            self.saliency = TemporalSaliency(settings.saliency)

        if settings.topic_guidance:
            self.topic = TopicGuidance(settings.topic)

    def embed(self, features: Tensor, *, mask: Mask = None) -> Tensor:
        """`frame_vectors` of each video, without gradients, in evaluation mode: the input of
        `compare`.

        features: [..., T, R, D], with their frame extras where distractors are told from content.
        mask: bool [..., T]. Returns float32 [..., T, 1, D], 0 at padding."""
        videos = features.reshape(-1, *features.shape[-3:])
        vectors = videos.new_zeros((*videos.shape[:2], self.dims), dtype=torch.float32)
        for number, video in enumerate(videos):
            length = (
                len(video) if mask is None else int(mask.reshape(len(videos), -1)[number].sum())
            )
            regions = video[:length]
            pooled = None
            if self.needs_extras:
                regions, pooled, _ = split_extras(regions, extras_dims=self.extras_dims)
            vectors[number, :length] = self.frame_vectors(regions, pooled)

        return vectors.reshape(*features.shape[:-2], 1, self.dims)

    @torch.no_grad()
    def frame_vectors(self, regions: Tensor, pooled: Tensor | None = None) -> Tensor:
        """What each frame adds to the vector of its video, in evaluation mode; their sum points
        where that vector does.

        regions: [T, R, D] unit vectors in any precision; pooled: [T, C] unit vectors, before
        whitening. Frames that the distractor network refuses are 0; where it refuses all, all are
        kept. In addition to arguments and result, this holds CHUNK_FRAMES frames in float32, and D
        and 4 width values per frame. Returns float32 [T, D]."""
        order = torch.arange(len(regions), device=regions.device)
        if self.distractor is not None:
            assert pooled is not None  # `embed` takes it from the features
            logits = torch.cat(
                [self.distractor(part.float()) for part in torch.split(pooled, CHUNK_FRAMES)]
            )
            confident = order[torch.sigmoid(logits) > 0.5]
            order = confident if len(confident) else order

        order = order.repeat(doubled_length(len(order)) // len(order))
        starts = range(0, len(order), CHUNK_FRAMES)
        means = torch.empty(len(order), self.dims, device=regions.device)
        for i in starts:
            means[i : i + CHUNK_FRAMES] = regions[order[i : i + CHUNK_FRAMES]].float().mean(1)
        weights = means.new_ones(len(order))
        if self.topic is not None:
            weights = weights * self.topic(means.unsqueeze(0)).squeeze(0)
        if self.saliency is not None:
            states = [
                self.saliency.windows(
                    diagonal_cells(regions, order, i, min(i + CHUNK_FRAMES, len(order)))
                )
                for i in starts
            ]
            weights = weights * self.saliency.weights_of_states(torch.cat(states))

        return means.new_zeros(len(regions), self.dims).index_add_(
            0, order, means.mul_(weights.unsqueeze(-1))
        )

    def anchors(
        self, regions: Tensor, pooled: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Anchors of a training step after all modules, as the losses need them.

        regions: [A, T, R, D]; pooled: [A, T, C], None for anchors that no distractors were inserted
        into, which the distractor network does not see. Returns the regions scaled by the
        confidence, unit vectors [A, D], the logits of the confidence [A, T] or None, and weights
        [A, T], None without temporal saliency."""
        logits = saliency = None
        if self.distractor is not None and pooled is not None:
            logits = self.distractor(pooled)
            regions = regions * torch.sigmoid(logits)[:, :, None, None]

        if self.saliency is not None:
            maps = [
                frame_similarity(clip.unsqueeze(0), clip.unsqueeze(0), rate=0) for clip in regions
            ]
            saliency = self.saliency(torch.cat(maps).squeeze(1))

        return regions, self.vectors(regions, saliency), logits, saliency

    def vectors(self, regions: Tensor, saliency: Tensor | None = None) -> Tensor:
        """Training vectors [N, D] of clips [N, T, R, D], whose frames are weighed by topic
        guidance, and anchors by saliency."""
        means = regions.mean(2)
        weights = means.new_ones(means.shape[:2]) if self.topic is None else self.topic(means)
        if saliency is not None:
            weights = weights * saliency
        return F.normalize((weights.unsqueeze(-1) * means).mean(1), dim=-1)

    def refined_maps(self, anchors: Tensor, others: Tensor) -> Tensor:
        """Raw frame similarities of each anchor with its own other clip, after the comparator.
        anchors: [A, T, R, D]; others: [A, T', R, D]. Returns [A, T // 4, T' // 4] before clipping.
        """
        assert self.comparator is not None  # temporal saliency has one
        pairs = zip(anchors, others, strict=True)
        maps = torch.cat(
            [frame_similarity(a.unsqueeze(0), b.unsqueeze(0), rate=0) for a, b in pairs]
        )
        for dim in (2, 3):
            maps, _ = pad_to_min_frames(maps, None, dim=dim, min_frames=COMPARATOR_STEP)
        raw: Tensor = self.comparator(maps.squeeze(1))
        return raw
