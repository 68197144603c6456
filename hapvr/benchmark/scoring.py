"""The scoring engine: features in, similarities of all (query, reference) pairs out, as a Parquet file.

Queries are held in memory, references are read once and scored in parts; a finished part is a file of its own, so a
run that was killed continues after its last part and ends with the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.errors import ArgumentError, DataError
from hapvr.model.network import SimilarityNetwork

SIMILARITY_SCHEMA = pa.schema(
    [
        pa.field("query_id", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("reference_id", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("similarity", pa.float32(), nullable=False),
    ]
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class FeatureReader(Protocol):
    """Where features come from."""

    def available(self) -> set[str]:
        """Ids of the videos that have features."""

    def read(self, video_ids: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """(id, features [T, R, D]) of those ids that are there, in an order that never changes."""


@dataclass(frozen=True, kw_only=True)
class ScoringSettings:
    """How pairs are scored; all but the sizes of parts may change scores.

    dtype: of the products of features. symmetric: mean of score(query, reference) and score(reference, query).
    references_per_part, frames_per_part: a part ends when it holds this many references or frames; its features are
      in memory at once.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    symmetric: bool = False
    references_per_part: int = 64
    frames_per_part: int = 16384

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ArgumentError(f"dtype is {self.dtype!r}; wanted one of {', '.join(DTYPES)}")
        for name in ("references_per_part", "frames_per_part"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} is {getattr(self, name)}; wanted 1 or more")


def score_benchmark(
    network: SimilarityNetwork,
    definition: BenchmarkDefinition,
    reader: FeatureReader,
    out_path: Path,
    *,
    device: torch.device | str = "cpu",
    settings: ScoringSettings | None = None,
) -> Path:
    """Scores every available query of `definition` against every available database video, and returns `out_path`.

    network: in evaluation mode on return; its weights are not changed. Writes columns query_id, reference_id,
    similarity (float32, [-1, 1]). Unfinished work lies in `<out_path>.parts` and is continued only for the same
    weights, ids and settings; anything else there is thrown away. A finished out_path of the same run is kept.
    Raises DataError where no query or no database video has features, or features do not fit the network.
    """
    settings = settings or ScoringSettings()
    network = network.to(device).eval()
    available = reader.available()
    queries = [video for video in definition.queries if video in available]
    database = [video for video in definition.database if video in available]
    if not queries or not database:
        raise DataError(
            f"benchmark {definition.name}: features of {len(queries)} of {len(definition.queries)} queries and "
            f"{len(database)} of {len(definition.database)} database videos; extract them first"
        )
    plan = _plan_digest(network, queries, database, settings)
    if out_path.is_file() and _stored_plan(out_path) == plan:
        return out_path
    parts = out_path.with_name(out_path.name + ".parts")
    scored = _finished_references(parts, plan)
    with torch.inference_mode():
        embedded = _embed_queries(network, reader, queries, device=device)
        number = len(list(parts.glob("part-*.parquet")))
        remaining = [video for video in database if video not in scored]
        for batch in _reference_parts(reader, remaining, settings):
            table = _score_part(network, embedded, batch, device=device, settings=settings)
            _write_table(table, parts / f"part-{number:06d}.parquet", plan=plan)
            number += 1
    _join_parts(parts, out_path, plan=plan)
    return out_path


def _plan_digest(
    network: SimilarityNetwork, queries: Sequence[str], database: Sequence[str], settings: ScoringSettings
) -> str:
    digest = hashlib.sha256()
    digest.update(json.dumps([asdict(settings), asdict(network.settings), list(queries), list(database)]).encode())
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _stored_plan(path: Path) -> str:
    metadata = pq.read_schema(path).metadata or {}
    return str(metadata.get(b"hapvr.scoring_plan", b"").decode())


def _finished_references(parts: Path, plan: str) -> set[str]:
    scored: set[str] = set()
    files = sorted(parts.glob("part-*.parquet"))
    if files and _stored_plan(files[0]) != plan:
        shutil.rmtree(parts)
        files = []
    parts.mkdir(parents=True, exist_ok=True)
    for file in files:
        scored.update(pq.read_table(file, columns=["reference_id"])["reference_id"].unique().to_pylist())
    return scored


def _embed_queries(
    network: SimilarityNetwork, reader: FeatureReader, queries: Sequence[str], *, device: torch.device | str
) -> dict[str, Tensor]:
    found = {}
    for video, features in reader.read(queries):
        found[video] = network.embed(_checked(video, features, network).to(device))
    return {video: found[video] for video in queries if video in found}


def _checked(video: str, features: Tensor, network: SimilarityNetwork) -> Tensor:
    wanted = network.settings.dims
    if features.ndim != 3 or features.shape[-1] != wanted or 0 in features.shape:
        raise DataError(
            f"features of {video}: shape {tuple(features.shape)}, wanted [frames, regions, {wanted}]; "
            "they are empty or were made for another model"
        )
    return features


def _reference_parts(
    reader: FeatureReader, references: Sequence[str], settings: ScoringSettings
) -> Iterator[list[tuple[str, Tensor]]]:
    part: list[tuple[str, Tensor]] = []
    num_frames = 0
    for video, features in reader.read(references):
        part.append((video, features))
        num_frames += len(features)
        if len(part) >= settings.references_per_part or num_frames >= settings.frames_per_part:
            yield part
            part, num_frames = [], 0
    if part:
        yield part


def _score_part(
    network: SimilarityNetwork,
    queries: dict[str, Tensor],
    part: list[tuple[str, Tensor]],
    *,
    device: torch.device | str,
    settings: ScoringSettings,
) -> pa.Table:
    """Rows by query, then by reference in the order of the part."""
    scores = np.empty((len(queries), len(part)), dtype=np.float32)
    for column, (video, features) in enumerate(part):
        reference = network.embed(_checked(video, features, network).to(device)).unsqueeze(0)
        for row, query in enumerate(queries.values()):
            score = network.score(query.unsqueeze(0), reference)
            if settings.symmetric:
                score = (score + network.score(reference, query.unsqueeze(0)).T) / 2
            scores[row, column] = float(score)
    query_index = np.repeat(np.arange(len(queries), dtype=np.int32), len(part))
    reference_index = np.tile(np.arange(len(part), dtype=np.int32), len(queries))
    return pa.Table.from_arrays(
        [
            pa.DictionaryArray.from_arrays(query_index, pa.array(list(queries), pa.string())),
            pa.DictionaryArray.from_arrays(reference_index, pa.array([video for video, _ in part], pa.string())),
            pa.array(scores.ravel()),
        ],
        schema=SIMILARITY_SCHEMA,
    )


def _write_table(table: pa.Table, path: Path, *, plan: str) -> None:
    beside = path.with_name(f".{path.name}.tmp")
    pq.write_table(table.replace_schema_metadata({"hapvr.scoring_plan": plan}), beside, compression="zstd")
    beside.replace(path)


def _join_parts(parts: Path, out_path: Path, *, plan: str) -> None:
    """One file with a row group per part, in the order of the parts; the parts are removed once it is there."""
    beside = out_path.with_name(f".{out_path.name}.tmp")
    schema = SIMILARITY_SCHEMA.with_metadata({"hapvr.scoring_plan": plan})
    with pq.ParquetWriter(beside, schema, compression="zstd") as writer:
        for file in sorted(parts.glob("part-*.parquet")):
            writer.write_table(pq.read_table(file).replace_schema_metadata(schema.metadata))
    beside.replace(out_path)
    shutil.rmtree(parts)
