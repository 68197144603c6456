"""The scoring engine: features in, similarities of all (query, reference) pairs out, as a Parquet
file.

Queries stay in memory. References are read once, and scored and written in parts.
"""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.data.features import MAX_NORM, FeatureStore
from hapvr.errors import DataError
from hapvr.files import write_atomic
from hapvr.model.family import VideoNetwork
from hapvr.model.network import SimilarityNetwork
from hapvr.tables import read_frame

REFERENCES_PER_PART = 128
FRAMES_PER_PART = 16384
"""A part ends when it holds so many references or frames; its features are in memory together."""

SCHEMA = pa.schema(
    {"query_id": pa.string(), "reference_id": pa.string(), "similarity": pa.float32()}
)


def normalize_similarities(
    similarities: pl.DataFrame, background: pl.DataFrame, *, top_k: int
) -> pl.DataFrame:
    """s'(q, r) = s(q, r) - the mean of the `top_k` largest similarities of q to a background set
    (S2VS 5.1, Fig. 5). A query that is similar to everything pushes its irrelevant pairs above the
    relevant pairs of other queries; its similarity to unrelated videos measures this. It is a
    constant per query, so it changes micro-AP and not mAP.

    similarities, background: as `score_benchmark` writes them. Raises DataError where a query has
    fewer than `top_k` finite similarities to the background."""
    finite = background.filter(pl.col("similarity").is_finite())
    nearest = pl.col("similarity").cast(pl.Float64).top_k(top_k)
    levels = finite.group_by("query_id").agg(level=nearest.mean(), num=pl.len())
    joined = similarities.join(levels, on="query_id", how="left", maintain_order="left")
    lacking = joined.filter(pl.col("num").fill_null(0) < top_k)
    if len(lacking):
        query, num = lacking.select("query_id", pl.col("num").fill_null(0)).row(0)
        raise DataError(
            f"normalisation: query {query!r} has {num} similarities to the background, and the "
            f"{top_k} largest were asked for; choose a smaller top_k or a larger background"
        )

    level = pl.col("similarity") - pl.col("level")
    return joined.select("query_id", "reference_id", level.cast(pl.Float32))


def score_benchmark(
    network: VideoNetwork,
    definition: BenchmarkDefinition,
    reader: FeatureStore,
    out_path: Path,
    *,
    references: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
) -> Path:
    """Score every query with features against every reference with features; returns `out_path`.

    Columns query_id, reference_id, similarity (float32, [-1, 1]) are written. Memory grows with the
    frames of the queries and of a part, not with the number of references.

    network: not changed; a copy is moved to the device.
    reader: by the benchmark's ids.
    references: None for the benchmark's database.

    Raises:
        DataError: no query or no reference has features, or features do not fit the network."""
    queries, references = _with_features(
        definition, reader, definition.database if references is None else references
    )
    network = copy.deepcopy(network).to(device).eval()

    def embed(video: str, features: Tensor) -> Tensor:
        _require_fit(network, video, features)
        return network.embed(features.to(device))

    with (
        torch.inference_mode(),
        write_atomic(out_path) as whole,
        pq.ParquetWriter(whole, SCHEMA, compression="zstd", write_page_checksum=True) as writer,
    ):
        embedded = {
            video: embed(video, features)
            for video, features in reader.read(queries, extras=network.needs_extras)
        }
        query_ids = [video for video in queries if video in embedded]
        query = [embedded.pop(video) for video in query_ids]
        for part in _parts(reader.read(references, extras=network.needs_extras)):
            scores = network.score_videos(
                query, [embed(video, features) for video, features in part]
            )
            columns = {
                "query_id": np.repeat(query_ids, len(part)),
                "reference_id": np.tile([video for video, _ in part], len(query_ids)),
                "similarity": scores.numpy().ravel(),
            }
            writer.write_table(pa.table(columns, schema=SCHEMA))

    return out_path


def read_scores(path: Path) -> pl.DataFrame:
    """The table that `score_benchmark` wrote. A file from elsewhere is read by `read_pairs`, in a
    process with limits."""
    return read_frame(path, categories=["query_id", "reference_id"])


def _with_features(
    definition: BenchmarkDefinition, reader: FeatureStore, references: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The queries and references that have features. Raises DataError where no query, or no
    reference, has."""
    available = reader.available()
    usable_queries = [video for video in definition.queries if video in available]
    usable_references = [video for video in references if video in available]
    if not usable_queries or not usable_references:
        raise DataError(
            f"benchmark {definition.name}: features of {len(usable_queries)} of "
            f"{len(definition.queries)} queries and "
            f"{len(usable_references)} of {len(references)} references; extract them first"
        )

    return usable_queries, usable_references


def _require_fit(network: VideoNetwork, video: str, features: Tensor) -> None:
    """Raise DataError if the network cannot take the features [T, R, D] of a video."""
    if features.shape[-1] != network.dims or not bool(torch.isfinite(features).all()):
        raise DataError(
            f"features of {video}, {list(features.shape)}: expected finite ones, [frames, "
            f"regions, {network.dims}]; they are "
            "damaged, or were made for another model. Extract the video again"
        )

    takes_unit_vectors = isinstance(network, SimilarityNetwork)
    if takes_unit_vectors and float(features.float().norm(dim=-1).max()) > MAX_NORM:
        raise DataError(
            f"features of {video} are not unit vectors, which the network takes; import "
            "whitened ones"
        )


def _parts(features: Iterator[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    """Videos with their features, REFERENCES_PER_PART or FRAMES_PER_PART of them at a time."""
    part: list[tuple[str, Tensor]] = []
    num_frames = 0
    for video, frames in features:
        part.append((video, frames))
        num_frames += len(frames)
        if len(part) >= REFERENCES_PER_PART or num_frames >= FRAMES_PER_PART:
            yield part
            part = []
            num_frames = 0

    if part:
        yield part
