"""Coarse to fine (DnS, Kordopatis-Zilos et al., IJCV 2022): a first model ranks all videos, a second the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import torch
from torch import Tensor

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.scoring import FeatureReader, require_usable, similarity_table
from hapvr.errors import ArgumentError, DataError
from hapvr.files import write_atomic
from hapvr.model.binary import binary_codes, hamming_similarity
from hapvr.model.family import VideoNetwork
from hapvr.model.packed import PackedVideos

NOT_RERANKED = 3.0
"""Taken off the first stage's similarity of what the second does not see, so that it ranks below all that it does."""


def score_in_two_stages(
    first: VideoNetwork,
    second: VideoNetwork,
    definition: BenchmarkDefinition,
    reader: FeatureReader,
    out_path: Path,
    *,
    candidates: int,
    codes: bool = False,
    device: torch.device | str = "cpu",
) -> Path:
    """Score every query against every database video by `first`, and its best `candidates` again by `second`.

    Writes columns query_id, reference_id, similarity: of the second stage in [-1, 1] for candidates, of the first less
    `NOT_RERANKED` for all others, which keep their order behind them. codes: compare binary codes of the first stage's video
    vectors, centred at the mean of the database's. Raises ArgumentError for fewer than one candidate and for codes of a
    model that has no single vector per video, DataError where no query or no database video has features, or some that do
    not fit. Both networks are moved to the device.
    """
    if candidates < 1:
        raise ArgumentError(f"candidates: got {candidates}, wanted 1 or more")
    available = reader.available()
    queries, database = ([v for v in ids if v in available] for ids in (definition.queries, definition.database))
    if not queries or not database:
        raise DataError(
            f"benchmark {definition.name}: features of {len(queries)} queries and {len(database)} database videos; extract "
            "them first"
        )
    ids = list(dict.fromkeys([*queries, *database]))
    place = {video_id: number for number, video_id in enumerate(ids)}
    rows, columns = ([place[video_id] for video_id in some] for some in (queries, database))
    with torch.inference_mode():
        coarse = first_stage(packed_videos(first, reader, ids, device), rows, columns, network=first, codes=codes)
        packed = packed_videos(second, reader, ids, device)
        scores = rerank(coarse, packed, rows, columns, network=second, candidates=candidates)
    with write_atomic(out_path) as part:
        pq.write_table(similarity_table(queries, database, scores.numpy()), part, compression="zstd")
    return out_path


def packed_videos(
    network: VideoNetwork, reader: FeatureReader, ids: Sequence[str], device: torch.device | str
) -> PackedVideos:
    """What the network compares, of videos in this order. Raises DataError for features that do not fit the network."""
    network = network.to(device).eval()
    found = {}
    for video_id, features in reader.read(ids, side=network.needs_side):
        require_usable(video_id, features, dims=network.dims)
        found[video_id] = network.embed(features.to(device).float())
    return network.pack([found[video_id] for video_id in ids])


def first_stage(
    packed: PackedVideos, rows: Sequence[int], columns: Sequence[int], *, network: VideoNetwork, codes: bool
) -> Tensor:
    """Similarities [Q, N] of the videos at `rows` and at `columns`. codes: of binary codes, see `score_in_two_stages`."""
    if not codes:
        return network.packed_scorer()(_chosen(packed, rows), _chosen(packed, columns)).cpu()
    vectors = packed.frames[:, 0].float().cpu()
    if set(packed.lengths) != {1} or packed.frames.shape[1] != 1:
        raise ArgumentError(
            "codes: the first stage has no single vector per video; take a model of family vvs, or of tca at level video"
        )
    made = binary_codes(vectors, vectors[list(columns)].mean(0))
    return hamming_similarity(made[list(rows)], made[list(columns)], dims=vectors.shape[1])


def rerank(
    coarse: Tensor,
    packed: PackedVideos,
    rows: Sequence[int],
    columns: Sequence[int],
    *,
    network: VideoNetwork,
    candidates: int,
) -> Tensor:
    """Scores [Q, N]: of `network` for each row's best candidates of `coarse`, which come before all others."""
    score = network.packed_scorer()
    scores = coarse - NOT_RERANKED
    best = coarse.argsort(dim=1, descending=True, stable=True)[:, :candidates]
    for row, chosen in enumerate(best.tolist()):
        fine = score(_chosen(packed, [rows[row]]), _chosen(packed, [columns[column] for column in chosen]))
        scores[row, chosen] = fine[0].float().cpu()
    return scores


def _chosen(packed: PackedVideos, places: Sequence[int]) -> PackedVideos:
    return PackedVideos.from_videos([packed.part(place, place + 1).frames for place in places])
