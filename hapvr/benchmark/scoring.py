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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.protocol import EvaluationResult, evaluate
from hapvr.config import Policy
from hapvr.errors import DataError
from hapvr.files import write_atomic
from hapvr.model.family import VideoNetwork
from hapvr.model.packed import Limits
from hapvr.tables import TABLE_ERRORS

SIMILARITY_SCHEMA = pa.schema(
    [
        pa.field("query_id", pa.string(), nullable=False),
        pa.field("reference_id", pa.string(), nullable=False),
        pa.field("similarity", pa.float32(), nullable=False),
    ]
)
PLAN_KEY = b"hapvr.scoring_plan"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


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


@dataclass(frozen=True, kw_only=True)
class ScoringSettings:
    """How pairs are scored. The sizes of parts change only the order of rows.

    dtype: of the features in their products and of the comparator.
    symmetric: mean of score(query, reference) and score(reference, query).
    references_per_part, frames_per_part: a part ends when it holds this many references or frames; its features are
      in memory at once.
    """

    dtype: Literal["float32", "bfloat16"] = "float32"
    symmetric: bool = False
    references_per_part: int = 128
    frames_per_part: int = 16384


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """How a network is evaluated on a benchmark; see `evaluate` for policy, available and bootstrap_samples.

    available: None takes the videos that have features, which the frozen policy does not accept.
    """

    policy: Policy = "strict"
    available: frozenset[str] | None = None
    bootstrap_samples: int = 0
    scoring: ScoringSettings = ScoringSettings()
    device: torch.device | str = "cpu"


def evaluate_network(
    network: VideoNetwork,
    definition: BenchmarkDefinition,
    reader: FeatureReader,
    out_path: Path,
    options: EvaluationOptions,
) -> EvaluationResult:
    """Score a benchmark with a network into `out_path`, see `score_benchmark`, and evaluate the similarities."""
    score_benchmark(network, definition, reader, out_path, device=options.device, settings=options.scoring)
    return evaluate_similarities(definition, reader, out_path, options)


def evaluate_similarities(
    definition: BenchmarkDefinition, reader: FeatureReader, similarities: Path, options: EvaluationOptions
) -> EvaluationResult:
    """Evaluate similarities that were scored on the features of `reader`."""
    available = options.available
    if available is None and options.policy != "frozen":
        available = frozenset(reader.available())
    return evaluate(
        definition,
        similarities,
        policy=options.policy,
        available=available,
        bootstrap_samples=options.bootstrap_samples,
    )


def score_benchmark(
    network: VideoNetwork,
    definition: BenchmarkDefinition,
    reader: FeatureReader,
    out_path: Path,
    *,
    references: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
    settings: ScoringSettings | None = None,
) -> Path:
    """Score every query with features against every reference with features. Returns `out_path`.

    network: not changed; a copy is moved to the device. references: None for the benchmark's database. Writes columns
    query_id, reference_id, similarity (float32, [-1, 1]). Unfinished work lies in `<out_path>.parts`. It is continued
    only for the same weights, features, ids and settings; anything else there is deleted. A finished out_path of the
    same run is kept. Memory grows with the frames of the queries and of a part, not with the number of references.
    Raises DataError where no query or no reference has features, or features do not fit the network.
    """
    settings, device = settings or ScoringSettings(), torch.device(device)
    references = definition.database if references is None else references
    available = reader.available()
    found = [[video for video in ids if video in available] for ids in (definition.queries, references)]
    if not found[0] or not found[1]:
        raise DataError(
            f"benchmark {definition.name}: features of {len(found[0])} of {len(definition.queries)} queries and "
            f"{len(found[1])} of {len(references)} references; extract them first"
        )
    plan = _plan_digest(network, [found, reader.digests(), asdict(settings), network.scoring_settings()])
    parts = out_path.with_name(out_path.name + ".parts")
    if out_path.is_file() and _stored_plan(out_path) == plan:
        shutil.rmtree(parts, ignore_errors=True)
        return out_path
    scored = _finished_references(parts, plan)
    network, dtype = copy.deepcopy(network).to(device).eval(), DTYPES[settings.dtype]
    compare = network.packed_scorer(dtype=dtype, limits=Limits.for_device(device))

    def embed(video: str, features: Tensor) -> Tensor:
        _require_usable(video, features, dims=network.dims)
        return network.embed(features.to(device), dtype=dtype)

    with torch.inference_mode():
        embedded = {video: embed(video, one) for video, one in reader.read(found[0], extras=network.needs_extras)}
        query_ids = [video for video in found[0] if video in embedded]
        query = network.pack([embedded.pop(video) for video in query_ids])
        first = 1 + max((int(file.stem[5:]) for file in parts.glob("part-*.parquet")), default=-1)
        remaining = [video for video in found[1] if video not in scored]
        for number, part in enumerate(_parts(reader, remaining, settings, extras=network.needs_extras), start=first):
            reference = network.pack([embed(video, features) for video, features in part])
            scores = compare(query, reference)
            if settings.symmetric:
                scores = (scores + compare(reference, query).T) / 2
            table = similarity_table(query_ids, [video for video, _ in part], scores.cpu().numpy())
            with write_atomic(parts / f"part-{number:06d}.parquet") as file:
                pq.write_table(table.replace_schema_metadata({PLAN_KEY: plan.encode()}), file, compression="zstd")
    _join_parts(parts, out_path, plan=plan)
    return out_path


def _require_usable(video: str, features: Tensor, *, dims: int) -> None:
    """Raise DataError unless features are [T, R, dims], not empty, and finite."""
    fits = features.ndim == 3 and features.shape[-1] == dims and 0 not in features.shape
    if not fits or not bool(torch.isfinite(features).all()):
        found = f"shape {tuple(features.shape)}" if not fits else "some values are not finite"
        raise DataError(
            f"features of {video}: {found}, wanted [frames, regions, {dims}]; they are damaged, or were made for another "
            "model. Extract the video again"
        )


def similarity_table(queries: Sequence[str], references: Sequence[str], scores: NDArray[np.float32]) -> pa.Table:
    """Rows by query, then by reference. scores: [Q, N]."""
    query = np.repeat(np.arange(len(queries)), len(references))
    reference = np.tile(np.arange(len(references)), len(queries))
    return pa.Table.from_arrays(
        [
            pa.array(queries, pa.string()).take(pa.array(query)),
            pa.array(references, pa.string()).take(pa.array(reference)),
            pa.array(scores.ravel(), pa.float32()),
        ],
        schema=SIMILARITY_SCHEMA,
    )


def _parts(
    reader: FeatureReader, references: Sequence[str], settings: ScoringSettings, *, extras: bool
) -> Iterator[list[tuple[str, Tensor]]]:
    part: list[tuple[str, Tensor]] = []
    num_frames = 0
    for video, features in reader.read(references, extras=extras):
        part.append((video, features))
        num_frames += len(features)
        if len(part) >= settings.references_per_part or num_frames >= settings.frames_per_part:
            yield part
            part, num_frames = [], 0
    if part:
        yield part


def _plan_digest(network: VideoNetwork, plan: list[object]) -> str:
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode())
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _stored_plan(path: Path) -> str:
    """The plan that a file of similarities was made by; "" of one that cannot be read."""
    try:
        metadata = pq.read_schema(path).metadata or {}
        return str(metadata.get(PLAN_KEY, b"").decode())
    except TABLE_ERRORS:
        return ""


def _finished_references(parts: Path, plan: str) -> set[str]:
    """References in the parts of this plan; parts of another one, and those that cannot be read, are deleted."""
    parts.mkdir(parents=True, exist_ok=True)
    scored: set[str] = set()
    for file in sorted(parts.glob("part-*.parquet")):
        try:
            table = pq.read_table(file, partitioning=None)
        except TABLE_ERRORS:
            table = None
        if table is not None and (table.schema.metadata or {}).get(PLAN_KEY) == plan.encode():
            scored.update(table["reference_id"].unique().to_pylist())
        else:
            file.unlink()
    return scored


def _join_parts(parts: Path, out_path: Path, *, plan: str) -> None:
    """Join the parts into one file, a row group per part in their order, then remove them."""
    schema = SIMILARITY_SCHEMA.with_metadata({PLAN_KEY: plan.encode()})
    with (
        write_atomic(out_path) as part,
        pq.ParquetWriter(part, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for file in sorted(parts.glob("part-*.parquet")):
            writer.write_table(pq.read_table(file, partitioning=None).replace_schema_metadata(schema.metadata))
    shutil.rmtree(parts)
