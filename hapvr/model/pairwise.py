"""Scores of all pairs of two lists of videos of any lengths: equal to one pair at a time, and several times as fast.

Videos are packed frame after frame, without padding, so that one matrix product serves many pairs. The product is reduced
over regions in chunks that stay in the cache, and the comparator sees small batches of pairs for the same reason. Long
videos are scored whole: if a pair is too large for the comparator, it is refined in strips that overlap by what the
convolutions see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.model.clips import Limits, Mask, PackedVideos, halve_mask, pad_to_min_frames
from hapvr.model.layers import Comparator
from hapvr.model.settings import NetworkSettings, strips
from hapvr.model.similarity import chamfer, packed_frame_similarity


@dataclass(frozen=True)
class PairScorer:
    """(packed queries, packed references) -> video similarities [Q, N] in float32, as the network gives for each pair alone.

    The videos are results of `embed`, in any floating dtype.
    """

    settings: NetworkSettings
    comparator: Comparator | None
    limits: Limits

    def __call__(self, query: PackedVideos, reference: PackedVideos) -> Tensor:
        query_groups = list(_groups(query.lengths, max_total=self.limits.query_frames))
        reference_groups = list(_groups(reference.lengths, max_total=self.limits.reference_frames))
        tasks = [(query.part(*rows), reference.part(*columns)) for columns in reference_groups for rows in query_groups]
        if self.limits.workers > 1:
            with _one_thread_per_operation(), ThreadPoolExecutor(self.limits.workers) as pool:
                blocks = list(pool.map(self._score_group, *zip(*tasks, strict=True)))
        else:
            blocks = [self._score_group(*task) for task in tasks]
        height = len(query_groups)
        columns = [torch.cat(blocks[start : start + height]) for start in range(0, len(blocks), height)]
        return torch.cat(columns, dim=1)

    @torch.inference_mode()
    def _score_group(self, query: PackedVideos, reference: PackedVideos) -> Tensor:
        frame = packed_frame_similarity(
            query.frames,
            reference.frames,
            max_chunk_elements=self.limits.product_bytes // query.frames.element_size(),
            **self.settings.spatial,
        ).float()
        return torch.stack([self._score_row(rows, reference) for rows in torch.split(frame, list(query.lengths))])

    def _score_row(self, frame: Tensor, reference: PackedVideos) -> Tensor:
        """Scores [N] of one query. frame: its frame similarities with all references, [T, sum of reference lengths]."""
        least = self.settings.min_frames
        if self.comparator is not None:
            frame = pad_to_min_frames(frame[None, None], None, dim=2, min_frames=least)[0][0, 0]
        scores = frame.new_empty(len(reference.lengths))
        for batch in _batches(reference.lengths, max_columns=self.limits.batch_elements // len(frame)):
            block, mask = _gather(frame, reference, batch)
            if self.comparator is not None:
                block, mask = pad_to_min_frames(block.unsqueeze(0), mask, dim=3, min_frames=least)
                block = block.squeeze(0)
            scores[batch] = self._score_block(block, mask)
        return scores

    def _score_block(self, block: Tensor, mask: Mask) -> Tensor:
        """Scores [P] of frame similarities [P, T, T'] with mask [P, T'] of real reference frames."""
        if self.comparator is not None:
            block = block.to(self.comparator.conv1.weight.dtype)
            if block.numel() > self.limits.strip_elements and len(block) == 1:
                raw = refine_in_strips(self.comparator, block, max_elements=self.limits.strip_elements)
            else:
                raw = self.comparator(block, None if mask is None else mask.new_ones(block.shape[:2]), mask)
            block = F.hardtanh(raw.float())
            mask = None if mask is None else halve_mask(halve_mask(mask))
        row_mask = None if mask is None else mask.new_ones(block.shape[:2])
        return chamfer(block, row_mask=row_mask, column_mask=mask, **self.settings.temporal)


@contextmanager
def _one_thread_per_operation() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _groups(lengths: Sequence[int], *, max_total: int) -> Iterator[tuple[int, int]]:
    """Consecutive videos with at most `max_total` frames together, or one video: (first, last + 1)."""
    first, total = 0, 0
    for index, length in enumerate(lengths):
        if index > first and total + length > max_total:
            yield first, index
            first, total = index, 0
        total += length
    yield first, len(lengths)


def _batches(lengths: Sequence[int], *, max_columns: int) -> Iterator[list[int]]:
    """Videos of similar lengths, shortest first: with padding at most `max_columns` frames together, or one video."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        if batch and (len(batch) + 1) * lengths[index] > max_columns:
            yield batch
            batch = []
        batch.append(index)
    yield batch


def _gather(frame: Tensor, reference: PackedVideos, batch: Sequence[int]) -> tuple[Tensor, Mask]:
    """Blocks [P, T, width] of a batch of references and the mask [P, width] of their real frames, None if all are."""
    lengths = [reference.lengths[index] for index in batch]
    width = max(lengths)
    if min(lengths) == width and batch[-1] - batch[0] == len(batch) - 1:  # neighbours of one length
        start = reference.starts[batch[0]]
        blocks = frame[:, start : start + len(batch) * width].view(len(frame), len(batch), width)
        return blocks.transpose(0, 1), None
    starts = torch.tensor([reference.starts[index] for index in batch], device=frame.device)
    last = torch.tensor(lengths, device=frame.device) - 1
    position = torch.arange(width, device=frame.device)
    # At padding some real frame is read, which the mask then clears.
    block = frame[:, starts[:, None] + position.minimum(last[:, None])].transpose(0, 1)
    if min(lengths) == width:
        return block, None
    mask = position <= last[:, None]
    return block.masked_fill(~mask[:, None], 0), mask


def refine_in_strips(comparator: Comparator, frame: Tensor, *, max_elements: int) -> Tensor:
    """The comparator's raw output for frame similarities that are too large to refine at once.

    frame: [P, T, T']. Returns [P, T // 4, T' // 4].
    """
    height = max_elements // (len(frame) * frame.shape[2])
    parts = [comparator(frame[:, rows])[:, kept] for rows, kept in strips(frame.shape[1], height=height)]
    return torch.cat(parts, dim=1)
