"""Shards: `<step>/<shard>/data.parquet` (rows) and `index.parquet` (one row per video, failures
with their reason).

The index is written last and carries the provenance and the data file's size and digest, so a shard
is finished exactly when its index is there. A shard that was made from other settings or inputs is
made again. A damaged shard counts as missing for the step that makes it; those that read it get a
DamagedError.

Tensors, all of half precision, are fixed-size binary columns: fast to read, with the shape in the
field's metadata.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, Field

from hapvr.data.filesystem import DataRoot, read_schema_metadata
from hapvr.errors import DamagedError, DataError
from hapvr.provenance import Provenance, require_settings
from hapvr.tables import check_columns, read_table, write_table

if TYPE_CHECKING:
    import polars as pl

PROVENANCE_KEY = b"hapvr.provenance"
DATA_DIGEST_KEY = b"hapvr.data_sha256"
DATA_BYTES_KEY = b"hapvr.data_bytes"
STATUS_OK = "ok"
STATUS_FAILED = "failed"
INDEX_FIELDS = (
    *(
        pa.field(name, pa.string(), nullable=False)
        for name in ("video_id", "status", "reason", "message")
    ),
    pa.field("num_rows", pa.int64(), nullable=False),
)
TENSOR_KEY = b"hapvr.tensor"
ROW_GROUP_ROWS = 256
"""At most; longer videos have several row groups."""

Columns = Sequence[pa.Array | pa.ChunkedArray | npt.NDArray[Any] | Sequence[Any]]
"""Values of each column of a data file, all of one length N; [N, *shape] arrays for tensor columns.
"""
Places = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class ShardIndex:
    """The index of a finished shard. data_sha256: of the data file as it was written; "" if the
    shard has none."""

    provenance: Provenance
    table: pa.Table
    data_sha256: str

    def rows(self) -> list[dict[str, Any]]:
        """A row per video: video_id, status, reason, message, num_rows and the step's own
        columns."""
        return list(self.table.to_pylist())

    def frame(self) -> pl.DataFrame:
        """As `rows`."""
        import polars as pl  # what searches alone needs none

        return pl.DataFrame(self.table)

    def places(self) -> Places:
        """Video id -> its first row in the data file and how many it has, in file order."""
        places, start = {}, 0
        columns = (
            self.table.column(name).to_pylist() for name in ("video_id", "status", "num_rows")
        )
        for video_id, status, num_rows in zip(*columns, strict=True):
            if status == STATUS_OK:
                places[video_id] = (start, num_rows)
                start += num_rows
        return places


@dataclass(frozen=True)
class Shard:
    """One shard of one step under a data root."""

    root: DataRoot
    stage: str
    key: str

    @property
    def data_name(self) -> str:
        return f"{self.stage}/{self.key}/data.parquet"

    @property
    def index_name(self) -> str:
        return f"{self.stage}/{self.key}/index.parquet"

    def read(self) -> ShardIndex:
        """The index. Raises DataError if the shard is unfinished, DamagedError if it or the data
        file's size is not what was written."""
        with self.root.open(self.index_name) as file:
            data = file.read()
        with self.root.corruption_errors(self.index_name, hint=self.hint):
            table = read_table(pa.BufferReader(data))
            names = {field.name for field in INDEX_FIELDS}
            own = [field.with_nullable(True) for field in table.schema if field.name not in names]
            check_columns(table, [*INDEX_FIELDS, *own])
            if len(table) and pc.min(table.column("num_rows")).as_py() < 0:
                raise ValueError("a video has a negative number of rows")
            provenance = Provenance.from_json(read_schema_metadata(table.schema, PROVENANCE_KEY))
            num_bytes = int(read_schema_metadata(table.schema, DATA_BYTES_KEY) or 0)
        if num_bytes and (found := self.root.num_bytes(self.data_name)) != num_bytes:
            raise DamagedError(
                f"storage: {self.data_name} below {self.root.url} has {found} bytes, "
                f"{num_bytes} were written; {self.hint}"
            )
        return ShardIndex(provenance, table, read_schema_metadata(table.schema, DATA_DIGEST_KEY))

    def find(self) -> ShardIndex | None:
        """The index; None while the shard is unfinished. A damaged shard counts as unfinished; a
        warning says so."""
        if not self.root.exists(self.index_name):
            return None
        try:
            return self.read()
        except DamagedError as error:
            warnings.warn(f"{error}. It counts as missing")
            return None

    def provenance(self) -> Provenance | None:
        """What the finished shard was made from; None as of `find`."""
        found = self.find()
        return None if found is None else found.provenance

    def is_finished(self, wanted: Provenance) -> bool:
        """Whether the shard was made from these settings and inputs, and has its size. `hapvr
        verify` reads all."""
        found = self.provenance()
        return found is not None and found.fingerprint == wanted.fingerprint

    def require(self, settings: dict[str, Any]) -> Provenance:
        """The provenance of a finished shard. Raises DataError if there is none or these settings
        differ, saying which; DamagedError."""
        found = self.read().provenance
        chosen = {key: found.settings.get(key) for key in settings}
        what = f"storage: {self.stage} of shard {self.key} was made with other settings"
        require_settings(
            chosen, settings, what=what, hint="Materialise it again, or restore those settings"
        )
        return found

    def digest(self) -> str:
        """SHA-256 of the index, which holds the data file's digest."""
        return self.root.sha256(self.index_name)

    def index(self) -> pl.DataFrame:
        """The rows of the index, as of `ShardIndex.rows`. Raises as `read` does."""
        return self.read().frame()

    def rows(self) -> list[dict[str, Any]]:
        """The rows of `index` as dicts. Raises as `read` does."""
        return self.read().rows()

    def verify(self) -> None:
        """Read all of the shard. Raises DataError if it is unfinished, DamagedError if it is not
        what was written."""
        index = self.read()
        if index.data_sha256 and (found := self.root.sha256(self.data_name)) != index.data_sha256:
            raise DamagedError(
                f"{self.data_name} has SHA-256 {found[:16]}..., its index says "
                f"{index.data_sha256[:16]}...; {self.hint}"
            )

    def open_data(self) -> pq.ParquetFile:
        """The data file. Raises DataError where there is none, DamagedError where it is damaged."""
        with self.corruption_errors():
            file, remote = self.root.open(self.data_name), self.root.local is None
            return pq.ParquetFile(file, pre_buffer=remote, page_checksum_verification=True)

    def corruption_errors(self) -> AbstractContextManager[None]:
        """Turn errors of a block that reads the data file into a DamagedError with its name."""
        return self.root.corruption_errors(self.data_name, hint=self.hint)

    @property
    def hint(self) -> str:
        """What makes a damaged shard again."""
        return (
            f"run `hapvr verify --config FILE --repair`, which makes {self.stage} of "
            f"shard {self.key} again"
        )

    def write_index(
        self,
        rows: Iterable[dict[str, Any]],
        *,
        provenance: Provenance,
        fields: Sequence[pa.Field] = (),
    ) -> None:
        """Finish the shard. rows: INDEX_FIELDS plus `fields` of each video; the data file, if any,
        is already in place."""
        metadata = {PROVENANCE_KEY: provenance.to_json().encode()}
        if self.root.exists(self.data_name):
            metadata[DATA_DIGEST_KEY] = self.root.sha256(self.data_name).encode()
            metadata[DATA_BYTES_KEY] = str(self.root.num_bytes(self.data_name)).encode()
        table = pa.Table.from_pylist(
            list(rows), schema=pa.schema([*INDEX_FIELDS, *fields], metadata=metadata)
        )
        with self.root.write(self.index_name) as stream:
            write_table(table, stream)

    def lock(self) -> AbstractContextManager[None]:
        """Held while the shard is made, so that two runs at once make it once; see
        `DataRoot.lock`."""
        return self.root.lock(f"{self.stage}/{self.key}")

    @contextmanager
    def write_data(self, fields: Sequence[pa.Field]) -> Iterator[Callable[[Columns], None]]:
        """A function that writes the rows of one video, the values of each column in the order of
        the fields, into row groups of their own. Until the block ends well, the old data and index
        stay readable."""
        schema = pa.schema(fields)
        with (
            self.root.write(self.data_name, invalidates=self.index_name) as stream,
            pq.ParquetWriter(
                stream,
                schema,
                compression="none",  # tensors and JPEGs do not compress
                use_dictionary=["video_id"],
                write_statistics=["video_id"],
                data_page_size=1 << 30,
                write_page_checksum=True,
            ) as writer,
        ):

            def write(columns: Columns) -> None:
                arrays = [
                    _encode(values, field) for values, field in zip(columns, schema, strict=True)
                ]
                writer.write_table(pa.table(arrays, schema=schema), row_group_size=ROW_GROUP_ROWS)

            yield write


def index_row(
    video_id: str,
    num_rows: int,
    *,
    status: str = "",
    reason: str = "",
    message: str = "",
    **columns: Any,
) -> dict[str, Any]:
    """A row of an index; a non-empty reason makes it `failed` unless a status is given. columns:
    the step's own."""
    return {
        "video_id": video_id,
        "status": status or (STATUS_FAILED if reason else STATUS_OK),
        "reason": reason,
        "message": message.encode(
            errors="backslashreplace"
        ).decode(),  # names of files need not be UTF-8
        "num_rows": num_rows,
        **columns,
    }


class VideoRows:
    """The rows of single videos out of a data file whose videos are contiguous, located by its
    index; none is held."""

    def __init__(self, shard: Shard, *columns: str) -> None:
        """columns: those that are read besides the video's id; none: all. Raises DataError for an
        unfinished or damaged shard."""
        index = shard.read()
        self.settings = index.provenance.settings
        self._shard, self._places = shard, index.places()
        self._file = shard.open_data()
        self._schema = self._file.schema_arrow
        self._columns = list(columns) or self._schema.names
        with shard.corruption_errors():
            types = {"video_id": pa.string(), "timestamp_s": pa.float64(), "jpeg": pa.binary()}
            names = {"video_id", *self._columns}
            wanted = [
                pa.field(name, types.get(name) or self._schema.field(name).type) for name in names
            ]
            check_columns(self._schema.empty_table(), wanted)
        groups = range(self._file.metadata.num_row_groups)
        self._starts = np.cumsum(
            [0, *(self._file.metadata.row_group(group).num_rows for group in groups)], dtype=int
        )

    @property
    def dims(self) -> int:
        """The last axis of the last column, which holds tensors. Raises DamagedError where it does
        not."""
        with self._shard.corruption_errors():
            return _shape(self._schema.field(self._columns[-1]))[-1]

    @property
    def video_ids(self) -> list[str]:
        """Videos that have rows, in file order."""
        return list(self._places)

    def rows(
        self, video_id: str, first: int = 0, last: int | None = None, *columns: str
    ) -> pa.Table:
        """The rows of a video from `first` to `last` - 1. columns: of those that were named; none:
        all of them. Raises DataError if it has none or the file is damaged."""
        if video_id not in self._places:
            raise DataError(
                f"storage: {self._shard.stage} of shard {self._shard.key} has no rows of "
                f"{video_id}; see its index"
            )
        start, count = self._places[video_id]
        start, stop = start + first, start + (count if last is None else min(last, count))
        group, end = (
            int(np.searchsorted(self._starts, start, "right")) - 1,
            int(np.searchsorted(self._starts, stop)),
        )
        with self._shard.corruption_errors():
            groups = self._file.read_row_groups(
                range(group, end), ["video_id", *(columns or self._columns)]
            )
        table = groups.slice(start - int(self._starts[group]), max(stop - start, 0))
        others = [
            found for found in table.column("video_id").unique().to_pylist() if found != video_id
        ]
        if others or any(column.null_count for column in table.columns):
            name = self._shard.data_name
            raise DamagedError(
                f"storage: {name} does not hold {video_id} where its index says; {self._shard.hint}"
            )
        return table

    def tensors(
        self, video_id: str, first: int = 0, last: int | None = None, part: Any = ...
    ) -> npt.NDArray[Any]:
        """A part, as NumPy indexes it, of [T, *shape] of the last column, which holds tensors, as
        an array of its own."""
        name = self._columns[-1]
        table = self.rows(video_id, first, last, name)
        with self._shard.corruption_errors():
            # a view would keep the whole row group in memory
            return np.array(decode_tensors(table.column(name), self._schema.field(name))[part])


def frame_fields(*stored: pa.Field) -> tuple[pa.Field, ...]:
    """The columns of a shard with a row per frame. stored: those of what is kept of a frame."""
    first = (("video_id", pa.string()), ("frame_index", pa.int32()), ("timestamp_s", pa.float64()))
    return (*(pa.field(name, kind, nullable=False) for name, kind in first), *stored)


def frame_columns(video_id: str, timestamps_s: Sequence[float], *stored: Any) -> Columns:
    """The rows of one video, column by column in the order of `frame_fields`. timestamps_s: T
    seconds; stored: T values each."""
    return [video_id] * len(timestamps_s), range(len(timestamps_s)), timestamps_s, *stored


def tensor_field(name: str, *, shape: Sequence[int]) -> pa.Field:
    """A column of half-precision tensors of one shape, e.g. (9, 512), row-major."""
    metadata = {TENSOR_KEY: json.dumps({"shape": list(shape), "dtype": "float16"}).encode()}
    return pa.field(name, pa.binary(2 * math.prod(shape)), nullable=False, metadata=metadata)


def decode_tensors(column: pa.ChunkedArray | pa.Array, field: pa.Field) -> npt.NDArray[np.float16]:
    """A column of N rows -> [N, *shape] array; a view of its memory where it is one chunk. Raises
    ValueError for other columns."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    data, start = column.buffers()[1], column.offset * column.type.byte_width
    return np.ndarray((len(column), *_shape(field)), np.float16, data, start)


class _Tensor(BaseModel):
    """Under TENSOR_KEY."""

    shape: tuple[Annotated[int, Field(ge=1, lt=2**31)], ...]
    dtype: Literal["float16"]


def _shape(field: pa.Field) -> tuple[int, ...]:
    shape = _Tensor.model_validate_json(
        (field.metadata or {}).get(TENSOR_KEY, b""), strict=True
    ).shape
    if 2 * math.prod(shape) != getattr(field.type, "byte_width", 0):
        raise ValueError(f"column {field.name!r}: float16 {list(shape)} do not fit {field.type}")
    return shape


def _encode(values: Any, field: pa.Field) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if TENSOR_KEY not in (field.metadata or {}):
        return pa.array(values, field.type)
    data = np.ascontiguousarray(values, np.float16)
    assert data.shape[1:] == _shape(field), (field.name, data.shape)
    return pa.Array.from_buffers(field.type, len(data), [None, pa.py_buffer(data)])
