"""How TCA trains: an anchor finds its positive among the videos of a memory bank."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from hapvr.config import TrainConfig
from hapvr.errors import ConfigError
from hapvr.losses.contrast import MemoryBank, contrast_circle, contrast_infonce
from hapvr.losses.settings import ContrastSettings
from hapvr.model.family import video_vectors
from hapvr.model.tca.network import ContextNetwork
from hapvr.seeding import torch_rng
from hapvr.train.batch import STRENGTHS, Batch
from hapvr.train.family import FamilyTraining, StepOutput, drawing_by

LARGEST_BANK = 4096


class ContrastTraining(FamilyTraining):
    """Clips to the loss of their video vectors (TCA 3.3, 3.4).

    The anchor is the weak view of a video and the positive its strong view. Positives are the keys: with
    `batch_negatives` they are also negatives of the other anchors, and after the comparison they enter the bank. Only
    anchors get gradients. What shows an anchor's own video or donor is never its negative.

    It trains in one process.
    """

    network: ContextNetwork

    def __init__(
        self,
        network: ContextNetwork,
        settings: TrainConfig,
        *,
        num_videos: int,
        batch_videos: int,
    ) -> None:
        super().__init__(network)
        self._settings = settings
        contrast = settings.contrast
        size = bank_size(contrast, num_videos=num_videos, num_keys=batch_videos)
        self.bank = MemoryBank(size, dims=network.dims, generator=torch_rng(settings.seed, "bank")) if size else None
        self.key_network = copy.deepcopy(network).requires_grad_(False) if contrast.momentum else None

    def forward(self, batch: Batch, batch_number: int = 0) -> StepOutput:
        """The one term is the loss. Frame labels are not read."""
        settings, regions = self._settings, batch.regions
        mask = None
        if batch.num_frames is not None:
            mask = torch.arange(regions.shape[1], device=regions.device) < batch.num_frames[:, None]
        is_anchor = torch.arange(len(regions), device=regions.device) % len(STRENGTHS) == 0
        if self.key_network is not None:
            follow(self.key_network, self.network, momentum=settings.contrast.momentum)
        with drawing_by(settings.seed, "dropout", batch_number, 0, device=regions.device):
            anchors = _vectors(self.network, regions, mask, is_anchor)
            with torch.no_grad():
                keys = _vectors(self.key_network or self.network, regions, mask, ~is_anchor)
        negatives, usable = [], []
        if settings.contrast.batch_negatives:
            negatives, usable = [keys], [batch.labels[is_anchor][:, ~is_anchor] < 0]
        if self.bank is not None:
            negatives.append(self.bank.negatives())
            usable.append(self.bank.usable(batch.source_ids[is_anchor]))
        positive = (anchors * keys).sum(1, keepdim=True)
        similarity = torch.cat([positive, anchors @ torch.cat(negatives).T], dim=1)
        loss = contrast_loss(settings.contrast, similarity, torch.cat(usable, dim=1))
        if self.bank is not None:
            self.bank.add(keys, batch.source_ids[~is_anchor])
        return loss, {"contrast": loss.detach()}


def contrast_loss(settings: ContrastSettings, similarity: Tensor, usable: Tensor | None = None) -> Tensor:
    """The loss that the settings name, of cosines [N, 1 + K], see `hapvr.losses.contrast`."""
    if settings.loss == "infonce":
        return contrast_infonce(similarity, usable, temperature=settings.temperature)
    return contrast_circle(similarity, usable, margin=settings.margin, scale=settings.scale, form=settings.circle_form)


@torch.no_grad()
def follow(keys: ContextNetwork, network: ContextNetwork, *, momentum: float) -> None:
    """keys <- m keys + (1 - m) network, in place."""
    for key, weight in zip(keys.parameters(), network.parameters(), strict=True):
        key.mul_(momentum).add_(weight, alpha=1 - momentum)


def bank_size(settings: ContrastSettings, *, num_videos: int, num_keys: int) -> int:
    """How many vectors the bank holds; 0: there is none.

    num_videos: of the training; num_keys: vectors that a step adds. Raises ConfigError for a bank that is larger than the
    collection, or smaller than what a step adds, and where there are no negatives at all.
    """
    size = settings.bank_size
    if size is None:
        largest = min(num_videos // 2, LARGEST_BANK)
        size = largest - largest % num_keys
    if size > num_videos or 0 < size < num_keys or not (size or settings.batch_negatives):
        raise ConfigError(
            f"train.contrast.bank_size: {size} does not fit: a step adds {num_keys} vectors, and there are {num_videos} training "
            "videos, of which none should be in the bank twice; set a number between these, or 0 or null and batch_negatives: "
            "true, or add videos"
        )
    return size


def _vectors(network: ContextNetwork, regions: Tensor, mask: Tensor | None, chosen: Tensor) -> Tensor:
    mask = None if mask is None else mask[chosen]
    return video_vectors(network.embed(regions[chosen], mask=mask)[:, :, 0], mask)
