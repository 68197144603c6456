"""How TCA trains: an anchor finds its positive among the videos of a memory bank (TCA 3.4)."""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hapvr.config import TrainConfig
from hapvr.errors import ConfigError
from hapvr.losses.settings import ContrastSettings
from hapvr.model.family import video_vectors
from hapvr.model.tca import ContextNetwork
from hapvr.seeding import derive_seed, seeded, torch_rng
from hapvr.train.batch import STRENGTHS, Batch


class ContrastTraining(nn.Module):
    """Clips to the loss of their video vectors, in one process.

    Each anchor is compared with its own positive and with the videos of the bank. The anchors'
    negatives enter the bank, or the positives if a batch has no negatives. With `batch_negatives`
    positives are also negatives of the other anchors. A clip that shows an anchor's own video or
    host is never its negative.

    num_videos: whose vectors may be in the bank. batch_videos: anchors of a batch. clips_per_item:
    see `Batch`. Raises ConfigError for a bank that is larger than the collection, or smaller than
    what a step adds, and where there are no negatives at all."""

    def __init__(
        self,
        network: ContextNetwork,
        settings: TrainConfig,
        *,
        num_videos: int,
        batch_videos: int,
        clips_per_item: int,
    ) -> None:
        super().__init__()
        self.network = network
        self._settings = settings
        contrast = settings.contrast
        num_items = batch_videos * settings.accumulated_batches
        added = num_items * num_bank_rows(clips_per_item)
        size = contrast.bank_size
        if size is None:
            size = min(num_videos // 2, 4096) // added * added
        if size > num_videos or 0 < size < added or not (size or contrast.batch_negatives):
            raise ConfigError(
                f"train.contrast.bank_size: {size} does not fit: a step adds {added} "
                f"vectors, and there are {num_videos} training videos that may be in the bank, "
                "none of them twice; set a number between these, or 0 or null and "
                "batch_negatives: true, or add videos"
            )

        self.bank: MemoryBank | None = None
        if size:
            rng = torch_rng(settings.seed, "bank")
            self.bank = MemoryBank(size, dims=network.dims, generator=rng)

        self.key_network: ContextNetwork | None = None
        if contrast.momentum:
            self.key_network = copy.deepcopy(network).requires_grad_(False)

    @torch.no_grad()
    def begin_step(self, batches: Sequence[Batch], first_number: int) -> None:
        """Update the key encoder, and with `bank_order: before` put the negatives of all batches of
        the step into the bank. first_number: the number of the first of these batches."""
        if self.key_network is not None:
            follow(self.key_network, self.network, momentum=self._settings.contrast.momentum)
        if self.bank is None or self._settings.contrast.bank_order == "after":
            return
        for number, batch in enumerate(batches, start=first_number):
            rows = bank_rows(batch)
            with self._seeded("bank dropout", number, batch.regions.device):
                self.bank.add(self._vectors(self._keys, batch, rows), batch.source_ids[rows])

    def forward(self, batch: Batch, batch_number: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
        """The one term is the loss. Frame labels are not read."""
        contrast = self._settings.contrast
        rows = batch.anchor_rows
        entering = bank_rows(batch)
        own_keys = batch.clips_per_item == len(STRENGTHS)
        with self._seeded("dropout", batch_number, batch.regions.device):
            anchors = self._vectors(self.network, batch, rows)
            with torch.set_grad_enabled(contrast.positive_gradients and torch.is_grad_enabled()):
                positives = self._vectors(self._keys, batch, rows + 1)
            keys = positives.detach()
            if not own_keys and contrast.bank_order == "after":
                with torch.no_grad():
                    keys = self._vectors(self._keys, batch, entering)

        negatives = []
        usable = []
        if contrast.batch_negatives:
            negatives.append(positives)
            usable.append(batch.labels[rows][:, rows + 1] < 0)

        if self.bank is not None:
            # a clone, which vectors that enter later do not change
            negatives.append(self.bank.vectors.clone())
            usable.append(self.bank.usable(batch.source_ids[rows]))

        positive = (anchors * positives).sum(1, keepdim=True)
        similarity = torch.cat([positive, anchors @ torch.cat(negatives).T], dim=1)
        loss = contrast_loss(contrast, similarity, torch.cat(usable, dim=1))
        if self.bank is not None and contrast.bank_order == "after":
            self.bank.add(keys, batch.source_ids[entering])
        return loss, {"contrast": loss.detach()}

    @property
    def _keys(self) -> ContextNetwork:
        return self.network if self.key_network is None else self.key_network

    def _seeded(self, name: str, number: int, device: torch.device) -> AbstractContextManager[None]:
        """Inside the block, dropout depends only on the seed and the number of the batch."""
        return seeded(derive_seed(self._settings.seed, name, number, 0), device)

    def _vectors(self, network: ContextNetwork, batch: Batch, rows: Tensor) -> Tensor:
        """Unit vectors [n, D] of these clips."""
        mask = None if batch.frame_mask is None else batch.frame_mask[rows]
        embedded = network.embed(batch.regions[rows].float(), mask=mask)
        return video_vectors(embedded[:, :, 0], mask)


def bank_rows(batch: Batch) -> Tensor:
    """int64: the clips that enter the bank: negatives, or positives where a batch has none."""
    if batch.clips_per_item == len(STRENGTHS):
        return batch.anchor_rows + 1
    return batch.negative_rows


def num_bank_rows(clips_per_item: int) -> int:
    """How many clips of an item enter the bank, see `bank_rows`."""
    return max(clips_per_item - len(STRENGTHS), 1)


@torch.no_grad()
def follow(keys: ContextNetwork, network: ContextNetwork, *, momentum: float) -> None:
    """keys <- m keys + (1 - m) network, in place."""
    for key, weight in zip(keys.parameters(), network.parameters(), strict=True):
        key.mul_(momentum).add_(weight, alpha=1 - momentum)


def contrast_loss(
    settings: ContrastSettings, similarity: Tensor, usable: Tensor | None = None
) -> Tensor:
    """How well anchors tell their one positive from many negatives, [], the mean over anchors.

    similarity: raw cosines [N, 1 + K], a row per anchor, its positive in column 0. usable: bool [N,
    K], negatives that count; None: all. A row without negatives has a loss of 0.

    `infonce`: -log of the softmax of s / tau at the positive (TCA Eq. 3, whose denominator lacks
    one 1 / tau). `circle` (Eq. 4): that of logits scale [1 + m - s]+ (s - 1 + m) of a positive and
    scale [s + m]+ (s - m) of a negative, which weigh each similarity by how far it is from its
    optimum, as a constant. circle_form `released` takes all columns of row 0 for positives and all
    columns of the other rows for negatives, as the authors' code does."""
    if settings.loss == "infonce":
        logits = similarity / settings.temperature
    else:
        margin = settings.margin
        scale = settings.scale
        constant = similarity.detach()
        as_positive = scale * (1 + margin - constant).clamp(min=0) * (similarity - (1 - margin))
        as_negative = scale * (constant + margin).clamp(min=0) * (similarity - margin)
        positive = torch.zeros_like(similarity, dtype=torch.bool)
        (positive[:, 0] if settings.circle_form == "paper" else positive[0]).fill_(True)
        logits = torch.where(positive, as_positive, as_negative)

    if usable is not None:
        logits = logits.masked_fill(
            F.pad(~usable, (1, 0), value=False), torch.finfo(logits.dtype).min / 4
        )

    return -logits.log_softmax(dim=1)[:, 0].mean()


class MemoryBank(nn.Module):
    """K unit vectors, of which each step replaces the oldest; it starts as normalised Gaussian
    noise.

    vectors: [K, D]; source_ids: int64 [K, 2], the videos that each vector's clip shows, -1 for
    none; pointer: the place of the oldest. All are buffers, so they are part of a checkpoint."""

    vectors: Tensor
    source_ids: Tensor
    pointer: Tensor

    def __init__(self, size: int, *, dims: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.register_buffer(
            "vectors", F.normalize(torch.randn(size, dims, generator=generator), dim=-1)
        )
        self.register_buffer("source_ids", torch.full((size, 2), -1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    def usable(self, source_ids: Tensor) -> Tensor:
        """bool [N, K]: whether an anchor and a vector of the bank show no video in common.
        source_ids: int64 [N, 2]."""
        same = source_ids[:, None, :, None] == self.source_ids[None, :, None, :]
        return ~(same & (source_ids >= 0)[:, None, :, None]).any(-1).any(-1)

    @torch.no_grad()
    def add(self, vectors: Tensor, source_ids: Tensor) -> None:
        """Put unit vectors [n, D] of clips that show these videos, int64 [n, 2], in place of the n
        oldest, n at most K."""
        following = torch.arange(len(vectors), device=vectors.device)
        places = (self.pointer + following) % len(self.vectors)
        self.vectors[places] = vectors.to(self.vectors.dtype)
        self.source_ids[places] = source_ids
        self.pointer.copy_((self.pointer + len(vectors)) % len(self.vectors))
