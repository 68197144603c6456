"""The scoring engine: features in, similarities of all (query, reference) pairs out, as a Parquet file.

Queries stay in memory. References are read once and scored in parts. Each finished part is a file of its own, so a
killed run continues after its last part and ends with the same bytes.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.errors import ArgumentError, DataError
from hapvr.files import write_atomic
from hapvr.model.family import VideoNetwork
from hapvr.model.packed import Limits, PackedVideos
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
DtypeChoice = Literal["auto", "float32", "bfloat16"]


class FeatureReader(Protocol):
    """Where features come from."""

    def available(self) -> set[str]:
        """Ids of the videos that have features."""

    def digests(self) -> dict[str, str]:
        """Digests that identify the features, by shard. Unfinished work on other features is not continued."""

    def read(self, video_ids: Sequence[str], *, side: bool = False) -> Iterator[tuple[str, Tensor]]:
        """(id, features [T, R, D]) of the ids that have features, always in the same order.

        side: append pooled vectors and magnitudes, see `hapvr.model.side`.
        """


@dataclass(frozen=True, kw_only=True)
class ScoringSettings:
    """How pairs are scored. The sizes of parts change only the order of rows.

    dtype: of the features in their products and of the comparator. `auto` takes the faster one, which is measured on
      the first video; a run that is killed may then go on in the other.
    symmetric: mean of score(query, reference) and score(reference, query).
    references_per_part, frames_per_part: a part ends when it holds this many references or frames; its features are
      in memory at once.
    """

    dtype: DtypeChoice = "float32"
    symmetric: bool = False
    references_per_part: int = 128
    frames_per_part: int = 16384

    def __post_init__(self) -> None:
        if self.dtype not in get_args(DtypeChoice):
            raise ArgumentError(f"dtype is {self.dtype!r}; wanted one of {', '.join(get_args(DtypeChoice))}")
        for name in ("references_per_part", "frames_per_part"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} is {getattr(self, name)}; wanted 1 or more")


def score_benchmark(
    network: VideoNetwork,
    definition: BenchmarkDefinition,
    reader: FeatureReader,
    out_path: Path,
    *,
    device: torch.device | str = "cpu",
    settings: ScoringSettings | None = None,
    limits: Limits | None = None,
) -> Path:
    """`score_videos` of every query of `definition` against every database video."""
    return score_videos(
        network,
        definition.queries,
        definition.database,
        reader,
        out_path,
        name=f"benchmark {definition.name}",
        device=device,
        settings=settings,
        limits=limits,
    )


def score_videos(
    network: VideoNetwork,
    queries: Sequence[str],
    references: Sequence[str],
    reader: FeatureReader,
    out_path: Path,
    *,
    name: str = "scoring",
    device: torch.device | str = "cpu",
    settings: ScoringSettings | None = None,
    limits: Limits | None = None,
) -> Path:
    """Score every query with features against every reference with features. Returns `out_path`.

    network: not changed; a copy is moved to the device. Writes columns query_id, reference_id, similarity (float32,
    [-1, 1]). Unfinished work lies in `<out_path>.parts`. It is continued only for the same weights, features, ids and
    settings; anything else there is deleted. A finished out_path of the same run is kept. Memory grows with the
    frames of the queries and of a part, not with the number of references.
    limits: how much is computed at once; the default suits the device.
    Raises DataError where no query or no reference has features, or features do not fit the network.
    """
    settings, device = settings or ScoringSettings(), torch.device(device)
    available = reader.available()
    found = [[video for video in ids if video in available] for ids in (queries, references)]
    if not found[0] or not found[1]:
        raise DataError(
            f"{name}: features of {len(found[0])} of {len(queries)} queries and {len(found[1])} of "
            f"{len(references)} references; extract them first"
        )
    plan = _plan_digest(network, [found, reader.digests(), asdict(settings), network.scoring_settings()])
    parts = out_path.with_name(out_path.name + ".parts")
    if out_path.is_file() and _stored_plan(out_path) == plan:
        if parts.exists():
            shutil.rmtree(parts)
        return out_path
    scored = _finished_references(parts, plan)
    scorer = _Scorer(network, device=device, settings=settings, limits=limits)
    with torch.inference_mode():
        embedded = {
            video: scorer.embed(video, features) for video, features in reader.read(found[0], side=network.needs_side)
        }
        query_ids = [video for video in found[0] if video in embedded]
        query = scorer.network.pack([embedded.pop(video) for video in query_ids])
        number = 1 + max((int(file.stem[5:]) for file in parts.glob("part-*.parquet")), default=-1)
        remaining = [video for video in found[1] if video not in scored]
        for part in _parts(reader, remaining, settings, side=network.needs_side):
            scores = scorer.score(
                query, scorer.network.pack([scorer.embed(video, features) for video, features in part])
            )
            table = similarity_table(query_ids, [video for video, _ in part], scores.cpu().numpy())
            _write_table(table, parts / f"part-{number:06d}.parquet", plan=plan)
            number += 1
    _join_parts(parts, out_path, plan=plan)
    return out_path


class _Scorer:
    """The network on a device, scoring in the dtype of the settings."""

    def __init__(
        self, network: VideoNetwork, *, device: torch.device, settings: ScoringSettings, limits: Limits | None
    ) -> None:
        self.network = copy.deepcopy(network).to(device).eval()
        self.settings = settings
        self.device = device
        self._limits = limits or Limits.for_device(device)
        self._dtype: torch.dtype | None = None
        if settings.dtype != "auto":
            self._use(DTYPES[settings.dtype])

    def _use(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._score_packed = self.network.packed_scorer(dtype=dtype, limits=self._limits)

    def _fastest(self, features: Tensor) -> torch.dtype:
        """By one video against eight of its copies; the first try of each dtype prepares it."""
        seconds: dict[torch.dtype, float] = {}
        for dtype in DTYPES.values():
            self._use(dtype)
            for _ in range(3):
                start = time.perf_counter()
                video = self.network.embed(features, dtype=dtype)
                self.score(self.network.pack([video]), self.network.pack([video] * 8)).cpu()
                seconds[dtype] = min(seconds.get(dtype, math.inf), time.perf_counter() - start)
        return min(seconds, key=lambda dtype: seconds[dtype])

    def embed(self, video: str, features: Tensor) -> Tensor:
        """Embeddings [T, r, d] of one video. DataError unless its features fit the network."""
        require_usable(video, features, dims=self.network.dims)
        features = features.to(self.device)
        if self._dtype is None:
            self._use(self._fastest(features))
        return self.network.embed(features, dtype=self._dtype)

    def score(self, query: PackedVideos, reference: PackedVideos) -> Tensor:
        """[Q, N] float32."""
        scores = self._score_packed(query, reference)
        if self.settings.symmetric:
            scores = (scores + self._score_packed(reference, query).T) / 2
        return scores


def require_usable(video: str, features: Tensor, *, dims: int) -> None:
    """Raise DataError unless features are [T, R, dims], not empty, and finite."""
    if features.ndim != 3 or features.shape[-1] != dims or 0 in features.shape:
        raise DataError(
            f"features of {video}: shape {tuple(features.shape)}, wanted [frames, regions, {dims}]; "
            "they are empty or were made for another model"
        )
    if not bool(torch.isfinite(features).all()):
        raise DataError(f"features of {video}: some values are not finite; extract the video again")


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
    reader: FeatureReader, references: Sequence[str], settings: ScoringSettings, *, side: bool
) -> Iterator[list[tuple[str, Tensor]]]:
    part: list[tuple[str, Tensor]] = []
    num_frames = 0
    for video, features in reader.read(references, side=side):
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
    files = sorted(parts.glob("part-*.parquet"))
    if files and _stored_plan(files[0]) != plan:
        shutil.rmtree(parts)
        files = []
    parts.mkdir(parents=True, exist_ok=True)
    scored: set[str] = set()
    for file in files:
        try:
            scored.update(pq.read_table(file)["reference_id"].unique().to_pylist())
        except (*TABLE_ERRORS, KeyError) as error:
            warnings.warn(f"{file} is damaged ({error}); its videos are scored again", stacklevel=2)
            file.unlink()
    return scored


def _write_table(table: pa.Table, path: Path, *, plan: str) -> None:
    with write_atomic(path) as part:
        pq.write_table(table.replace_schema_metadata({PLAN_KEY: plan.encode()}), part, compression="zstd")


def _join_parts(parts: Path, out_path: Path, *, plan: str) -> None:
    """Join the parts into one file, a row group per part in their order, then remove them."""
    schema = SIMILARITY_SCHEMA.with_metadata({PLAN_KEY: plan.encode()})
    with (
        write_atomic(out_path) as part,
        pq.ParquetWriter(part, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for file in sorted(parts.glob("part-*.parquet")):
            writer.write_table(pq.read_table(file).replace_schema_metadata(schema.metadata))
    shutil.rmtree(parts)
