"""Temporal saliency: a weight per frame from the video's self-similarities around it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.model.settings import SaliencySettings

EXPANSION, HEADS = 4, 8
REACH = 2
"""The weight of a frame needs similarities of frames at most this many apart: its 3 x 3 cells on the diagonal."""


class TemporalSaliency(nn.Module):
    """A residual bottleneck on the map of self-similarities, of which the diagonal goes through an encoder layer.

    `forward` works on whole maps, as training does, because batch normalisation there needs all of their cells. `windows`
    gives the same weights from the cells around the diagonal alone, once the statistics are fixed.
    """

    def __init__(self, settings: SaliencySettings) -> None:
        super().__init__()
        width, dims = settings.width, EXPANSION * settings.width
        self.temperature = settings.temperature
        self.conv1 = nn.Conv2d(1, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, dims, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(dims)
        self.encoder = EncoderLayer(settings)

    def forward(self, similarity: Tensor) -> Tensor:
        """similarity: self-similarities [N, T, T]. Returns weights [N, T]."""
        maps = similarity.unsqueeze(1)
        hidden = F.pad(torch.relu(self.bn1(self.conv1(maps))), (1, 1, 1, 1), mode="replicate")
        states = torch.relu(self._rest(hidden) + maps)
        return self._weights(states.diagonal(dim1=2, dim2=3).transpose(1, 2))

    def windows(self, cells: Tensor) -> Tensor:
        """The states k_t of frames from their own windows. cells: [T, 3, 3]. Returns [T, 4 width], for `weights_of_states`."""
        maps = cells.unsqueeze(1)
        hidden = torch.relu(self.bn1(self.conv1(maps)))
        return torch.relu(self._rest(hidden) + maps[:, :, 1:2, 1:2]).flatten(1)

    def weights_of_states(self, states: Tensor) -> Tensor:
        """states: [T, 4 width], of all frames of a video in order. Returns weights [T]."""
        return self._weights(states.unsqueeze(0)).squeeze(0)

    def _rest(self, hidden: Tensor) -> Tensor:
        # Only 3 x 3 neighbourhoods are left here, so the edges of `hidden` are already those of its frames.
        values: Tensor = self.bn3(self.conv3(torch.relu(self.bn2(self.conv2(hidden)))))
        return values

    def _weights(self, states: Tensor) -> Tensor:
        return torch.sigmoid(self.encoder(states).mean(-1) / self.temperature)


class EncoderLayer(nn.Module):
    """A transformer layer with normalisation after each half, in which every frame attends to itself alone, as in the release.

    So queries and keys have no effect and no gradient.
    """

    def __init__(self, settings: SaliencySettings) -> None:
        super().__init__()
        dims = EXPANSION * settings.width
        self.dims = dims
        self.input = nn.Linear(dims, 3 * dims)
        self.output = nn.Linear(dims, dims)
        self.linear1 = nn.Linear(dims, 2 * dims)
        self.linear2 = nn.Linear(2 * dims, dims)
        self.norm1 = nn.LayerNorm(dims)
        self.norm2 = nn.LayerNorm(dims)
        self.dropout = nn.Dropout(settings.dropout)
        nn.init.xavier_uniform_(self.input.weight)
        nn.init.zeros_(self.input.bias)
        nn.init.zeros_(self.output.bias)

    def forward(self, states: Tensor) -> Tensor:
        """states: [N, T, 4 width]. Returns the same shape."""
        states = self.norm1(states + self.dropout(self.output(self._frame_alone(states))))
        hidden = self.linear2(self.dropout(torch.relu(self.linear1(states))))
        normalized: Tensor = self.norm2(states + self.dropout(hidden))
        return normalized

    def _frame_alone(self, states: Tensor) -> Tensor:
        first = 2 * self.dims
        values: Tensor = F.linear(states, self.input.weight[first:], self.input.bias[first:])
        # the weight of a frame for itself is 1, and training drops it as it drops any weight, head by head
        kept = self.dropout(values.new_ones((*values.shape[:2], HEADS)))
        weighed: Tensor = values * kept.repeat_interleave(self.dims // HEADS, dim=-1)
        return weighed


def diagonal_cells(frames: Tensor, order: Tensor, first: int, last: int) -> Tensor:
    """Self-similarities around the diagonal of a video, for the frames from `first` to `last` - 1.

    frames: [T, R, D]; order: int64 [T''], the frames of the video by their index in `frames`. A cell beyond the first or
    last frame holds the frame at that edge. Returns [last - first, 3, 3] float32: similarities (Chamfer over regions) of
    the frames t - 1, t, t + 1 with each other. At most last - first + 2 frames are converted to float32.
    """
    low, high = max(first - 1, 0), min(last + 1, len(order))
    part = frames[order[low:high]].float()
    position = torch.arange(first, last, device=part.device)
    around = torch.stack([position - 1, position, position + 1], dim=-1).clamp(0, len(order) - 1) - low
    shifted = {offset: _similarity_at(part, offset) for offset in range(-REACH, REACH + 1)}
    rows, columns = around.unsqueeze(2).expand(-1, 3, 3), around.unsqueeze(1).expand(-1, 3, 3)
    cells = part.new_empty(rows.shape)
    for offset, values in shifted.items():
        chosen = columns - rows == offset
        cells[chosen] = values[rows[chosen]]
    return cells


def _similarity_at(frames: Tensor, offset: int) -> Tensor:
    """Chamfer similarity over regions of frame t with frame t + offset, [T]; 0 where there is no such frame."""
    count = len(frames)
    values = frames.new_zeros(count)
    if abs(offset) < count:
        start, end = max(-offset, 0), count - max(offset, 0)
        products = frames[start:end] @ frames[start + offset : end + offset].transpose(1, 2)
        values[start:end] = products.amax(2).mean(1)
    return values
