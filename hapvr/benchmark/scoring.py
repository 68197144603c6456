"""The scoring engine: features in, similarities of all (query, reference) pairs out, as a Parquet file.

Queries stay in memory. References are read once and scored in parts. Each finished part is a file of its own, so a
killed run continues after its last part and ends with the same bytes.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.errors import DataError
from hapvr.files import write_atomic
from hapvr.model.clips import Limits
from hapvr.model.family import VideoNetwork
from hapvr.tables import TABLE_ERRORS

PLAN_KEY = b"hapvr.scoring_plan"
REFERENCES_PER_PART, FRAMES_PER_PART = 128, 16384
"""A part ends when it holds so many references or frames; its features are in memory at once."""


class FeatureReader(Protocol):
    """Where features come from."""

    def available(self) -> set[str]:
        """Ids of the videos that have features."""

    def digests(self) -> dict[str, str]:
        """Digests that identify the features, by shard. Unfinished work on other features is not continued."""

    def read(self, video_ids: Sequence[str], *, extras: bool = False) -> Iterator[tuple[str, Tensor]]:
        """(id, features [T, R, D]) of the ids that have features, always in the same order.

        extras: append pooled vectors and magnitudes, see `hapvr.model.frame_extras`.
        """


def normalize_similarities(
    similarities: pl.DataFrame, background: pl.DataFrame, *, top_k: int = 1, weight: float = 1.0
) -> pl.DataFrame:
    """s'(q, r) = s(q, r) - weight * mean of the top_k similarities of q to a background set (S2VS Fig. 5).

    A query that is similar to everything pushes its irrelevant pairs above the relevant pairs of other queries; its
    similarity to unrelated videos measures this. It is a constant per query, so it changes micro-AP and not mAP.
    similarities, background: as `score_benchmark` writes them. Queries with fewer than top_k finite similarities to the
    background use those they have.
    """
    finite = background.filter(pl.col("similarity").is_finite())
    levels = finite.group_by("query_id").agg(pl.col("similarity").top_k(top_k).mean().alias("level"))
    level = weight * pl.col("level").cast(pl.Float64)
    normalized = (pl.col("similarity").cast(pl.Float64) - level).cast(pl.Float32)
    joined = similarities.join(levels, on="query_id", how="left", maintain_order="left")
    return joined.select("query_id", "reference_id", normalized.alias("similarity"))


def score_benchmark(
    network: VideoNetwork,
    definition: BenchmarkDefinition,
    reader: FeatureReader,
    out_path: Path,
    *,
    references: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
) -> Path:
    """Score every query with features against every reference with features. Returns `out_path`.

    network: not changed; a copy is moved to the device. references: None for the benchmark's database. Writes columns
    query_id, reference_id, similarity (float32, [-1, 1]). Unfinished work lies in `<out_path>.parts`. It is continued
    only for the same weights, features and ids; anything else there is deleted. A finished out_path of the
    same run is kept. Memory grows with the frames of the queries and of a part, not with the number of references.
    Raises DataError where no query or no reference has features, or features do not fit the network.
    """
    device = torch.device(device)
    references = definition.database if references is None else references
    available = reader.available()
    found = [[video for video in ids if video in available] for ids in (definition.queries, references)]
    if not found[0] or not found[1]:
        raise DataError(
            f"benchmark {definition.name}: features of {len(found[0])} of {len(definition.queries)} queries and "
            f"{len(found[1])} of {len(references)} references; extract them first"
        )
    plan = _plan_digest(network, [found, reader.digests(), network.scoring_settings()])
    parts = out_path.with_name(out_path.name + ".parts")
    if out_path.is_file() and _has_plan(out_path, plan):
        shutil.rmtree(parts, ignore_errors=True)
        return out_path
    scored = _finished_references(parts, plan)
    network = copy.deepcopy(network).to(device).eval()
    compare = network.packed_scorer(dtype=torch.float32, limits=Limits.for_device(device))

    def embed(video: str, features: Tensor) -> Tensor:
        fits = features.ndim == 3 and features.shape[-1] == network.dims and 0 not in features.shape
        if not fits or not bool(torch.isfinite(features).all()):
            wrong = "some values are not finite" if fits else f"shape {tuple(features.shape)}"
            raise DataError(
                f"features of {video}: {wrong}, wanted [frames, regions, {network.dims}]; they are damaged, or were made for "
                "another model. Extract the video again"
            )
        return network.embed(features.to(device), dtype=torch.float32)

    with torch.inference_mode():
        embedded = {video: embed(video, one) for video, one in reader.read(found[0], extras=network.needs_extras)}
        query_ids = [video for video in found[0] if video in embedded]
        query = network.pack([embedded.pop(video) for video in query_ids])
        first = 1 + max((int(file.stem[5:]) for file in parts.glob("part-*.parquet")), default=-1)
        remaining = reader.read([video for video in found[1] if video not in scored], extras=network.needs_extras)
        for number, part in enumerate(_parts(remaining), start=first):
            reference = network.pack([embed(video, features) for video, features in part])
            scores = compare(query, reference)
            columns = {
                "query_id": np.repeat(query_ids, len(part)),
                "reference_id": np.tile([video for video, _ in part], len(query_ids)),
                "similarity": scores.float().cpu().numpy().ravel(),
            }
            with write_atomic(parts / f"part-{number:06d}.parquet") as file:
                pq.write_table(pa.table(columns, metadata={PLAN_KEY: plan}), file, compression="zstd")
    files = sorted(parts.glob("part-*.parquet"))
    schema = pq.read_schema(files[0])
    with (
        write_atomic(out_path) as whole,
        pq.ParquetWriter(whole, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for file in files:
            writer.write_table(pq.read_table(file, partitioning=None))
    shutil.rmtree(parts)
    return out_path


def _parts(features: Iterator[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    part: list[tuple[str, Tensor]] = []
    for video, one in features:
        part.append((video, one))
        if len(part) >= REFERENCES_PER_PART or sum(len(frames) for _, frames in part) >= FRAMES_PER_PART:
            yield part
            part = []
    if part:
        yield part


def _plan_digest(network: VideoNetwork, plan: list[object]) -> str:
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode())
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _has_plan(path: Path, plan: str) -> bool:
    """Whether a file of similarities was made by this plan. One that cannot be read was not."""
    try:
        return (pq.read_schema(path).metadata or {}).get(PLAN_KEY) == plan.encode()
    except TABLE_ERRORS:
        return False


def _finished_references(parts: Path, plan: str) -> set[str]:
    """References in the parts of this plan; parts of another one, and those that cannot be read, are deleted."""
    parts.mkdir(parents=True, exist_ok=True)
    scored: set[str] = set()
    for file in sorted(parts.glob("part-*.parquet")):
        try:
            table = pq.read_table(file, partitioning=None) if _has_plan(file, plan) else None
        except TABLE_ERRORS:
            table = None
        if table is None:
            file.unlink()
        else:
            scored.update(table["reference_id"].to_pylist())
    return scored
