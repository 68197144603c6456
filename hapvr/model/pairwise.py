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
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from hapvr.model.clips import pad_to_min_frames
from hapvr.model.kernels.frame_similarity import packed_matmul
from hapvr.model.layers import Comparator
from hapvr.model.packed import Limits, PackedVideos
from hapvr.model.settings import COMPARATOR_STEP, NetworkSettings
from hapvr.model.similarity import chamfer, reduce_regions

if TYPE_CHECKING:
    from hapvr.model.network import SimilarityNetwork  # which scores by this module

COMPARATOR_REACH = 8
"""Rows beyond a strip that its result depends on: 1 + 2 + 4, rounded up to the comparator's step."""


def score_packed(
    network: SimilarityNetwork,
    query: PackedVideos,
    reference: PackedVideos,
    *,
    limits: Limits | None = None,
    comparator: Comparator | None = None,
) -> Tensor:
    """Video similarities [Q, N] in float32, as `network.score` gives for each pair alone.

    query, reference: packed results of `network.embed`, in any floating dtype. comparator: replaces the network's own,
    e.g. by its copy in another dtype.
    """
    limits = limits or Limits.for_device(query.frames.device)
    comparator = comparator if comparator is not None else network.comparator
    scores = _score_one_way(network, query, reference, limits=limits, comparator=comparator)
    if network.settings.symmetric:
        back = _score_one_way(network, reference, query, limits=limits, comparator=comparator)
        scores = (scores + back.T) / 2
    return scores


def _score_one_way(
    network: SimilarityNetwork,
    query: PackedVideos,
    reference: PackedVideos,
    *,
    limits: Limits,
    comparator: Comparator | None,
) -> Tensor:
    query_groups = list(_groups(query.lengths, max_total=limits.query_frames))
    reference_groups = list(_groups(reference.lengths, max_total=limits.reference_frames))
    tasks = [(query.part(*rows), reference.part(*columns)) for columns in reference_groups for rows in query_groups]

    def score(task: tuple[PackedVideos, PackedVideos]) -> Tensor:
        with torch.inference_mode():  # each thread has its own mode
            return _score_group(network, *task, limits=limits, comparator=comparator)

    if limits.workers > 1:
        with _one_thread_per_operation(), ThreadPoolExecutor(limits.workers) as pool:
            blocks = list(pool.map(score, tasks))
    else:
        blocks = [score(task) for task in tasks]
    height = len(query_groups)
    columns = [torch.cat(blocks[start : start + height]) for start in range(0, len(blocks), height)]
    return torch.cat(columns, dim=1)


@contextmanager
def _one_thread_per_operation() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _score_group(
    network: SimilarityNetwork,
    query: PackedVideos,
    reference: PackedVideos,
    *,
    limits: Limits,
    comparator: Comparator | None,
) -> Tensor:
    frame = packed_frame_similarity(
        query.frames, reference.frames, settings=network.settings, max_bytes=limits.product_bytes
    )
    rows = [
        _score_row(network, frame[start : start + length], reference, limits=limits, comparator=comparator)
        for start, length in zip(query.starts, query.lengths, strict=True)
    ]
    return torch.stack(rows)


def packed_frame_similarity(query: Tensor, reference: Tensor, *, settings: NetworkSettings, max_bytes: int) -> Tensor:
    """`frame_similarity` of packed videos (HAP-VR Eq. 3), in float32 whatever their dtype.

    query: [n, R, D]; reference: [m, R', D]. Returns [n, m]. Similarities of regions take at most `max_bytes` at once, or
    what one query frame needs.
    """
    num_regions, dims = query.shape[1:]
    bytes_per_frame = num_regions * reference.shape[0] * reference.shape[1] * query.element_size()
    step = max(max_bytes // bytes_per_frame, 1)
    multiply = packed_matmul(reference.permute(1, 0, 2).reshape(-1, dims), num_rows=min(step, len(query)) * num_regions)
    frame = query.new_empty((len(query), len(reference)), dtype=torch.float32)
    for start in range(0, len(query), step):
        chunk = query[start : start + step]
        products = multiply(chunk.reshape(-1, dims)).view(len(chunk), num_regions, reference.shape[1], -1)
        frame[start : start + step] = reduce_regions(
            products,
            rate=settings.spatial_rate,
            pooling=settings.spatial_pooling,
            symmetric=settings.symmetric_chamfer,
        )
    return frame


def _groups(lengths: Sequence[int], *, max_total: int) -> Iterator[tuple[int, int]]:
    """Consecutive videos with at most `max_total` frames together, or one video: (first, last + 1)."""
    first, total = 0, 0
    for index, length in enumerate(lengths):
        if index > first and total + length > max_total:
            yield first, index
            first, total = index, 0
        total += length
    yield first, len(lengths)


def _score_row(
    network: SimilarityNetwork, frame: Tensor, reference: PackedVideos, *, limits: Limits, comparator: Comparator | None
) -> Tensor:
    """Scores [N] of one query. frame: its frame similarities with all references, [T, sum of reference lengths]."""
    if comparator is not None:
        frame = pad_to_min_frames(frame[None, None], None, dim=2, min_frames=network.settings.min_frames)[0][0, 0]
    lengths = reference.lengths
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    scores = frame.new_empty(len(lengths))
    for batch in _batches(order, lengths, max_columns=limits.batch_elements // len(frame)):
        if len(batch) == 1:
            start = reference.starts[batch[0]]
            block, mask = frame[None, :, start : start + lengths[batch[0]]], None
        else:
            block, mask = _gather(frame, reference, batch)
        if comparator is not None:
            block, mask = pad_to_min_frames(block.unsqueeze(0), mask, dim=3, min_frames=network.settings.min_frames)
            block = block.squeeze(0)
        scores[batch] = _score_block(network, block, mask, limits=limits, comparator=comparator)
    return scores


def _batches(order: Sequence[int], lengths: Sequence[int], *, max_columns: int) -> Iterator[list[int]]:
    """Videos of similar lengths, shortest first: with padding at most `max_columns` frames together, or one video."""
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * lengths[index] > max_columns:
            yield batch
            batch = []
        batch.append(index)
    yield batch


def _gather(frame: Tensor, reference: PackedVideos, batch: Sequence[int]) -> tuple[Tensor, Tensor | None]:
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


def _score_block(
    network: SimilarityNetwork, block: Tensor, mask: Tensor | None, *, limits: Limits, comparator: Comparator | None
) -> Tensor:
    """Scores [P] of frame similarities [P, T, T'] with mask [P, T'] of real reference frames."""
    settings = network.settings
    if comparator is not None:
        dtype = comparator.conv1.weight.dtype
        row_mask = None if mask is None else mask.new_ones(block.shape[:2])
        if block.numel() > limits.strip_elements and len(block) == 1:
            raw = refine_in_strips(comparator, block.to(dtype), max_elements=limits.strip_elements)
        else:
            raw = comparator(block.to(dtype), row_mask, mask)
        block = F.hardtanh(raw.float())
        if mask is not None:
            real = mask.sum(1, keepdim=True) // COMPARATOR_STEP
            mask = torch.arange(block.shape[-1], device=block.device) < real
    return chamfer(
        block,
        rate=settings.temporal_rate,
        pooling=settings.temporal_pooling,
        symmetric=settings.symmetric_chamfer,
        row_mask=None if mask is None else mask.new_ones(block.shape[:2]),
        column_mask=mask,
    )


def refine_in_strips(comparator: Comparator, frame: Tensor, *, max_elements: int) -> Tensor:
    """The comparator's raw output for frame similarities that are too large to refine at once.

    frame: [P, T, T']. A strip starts at a multiple of the comparator's step, and it includes the rows beyond its ends that
    the convolutions see. Returns [P, T // 4, T' // 4].
    """
    num_rows = frame.shape[1]
    whole = num_rows // COMPARATOR_STEP * COMPARATOR_STEP
    height = max(max_elements // (len(frame) * frame.shape[2]) - 2 * COMPARATOR_REACH, COMPARATOR_STEP)
    height = height // COMPARATOR_STEP * COMPARATOR_STEP
    strips = []
    for start in range(0, whole, height):
        before = min(start, COMPARATOR_REACH)
        end = min(start + height, whole)
        after = num_rows if end == whole else min(end + COMPARATOR_REACH, num_rows)
        raw = comparator(frame[:, start - before : after])
        strips.append(raw[:, before // COMPARATOR_STEP : (before + end - start) // COMPARATOR_STEP])
    return torch.cat(strips, dim=1)
