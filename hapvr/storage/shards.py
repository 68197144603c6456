"""Shards: `<stage>/<shard>/data.parquet` (rows) and `index.parquet` (one row per video, failures with their reason).

The index is written last and carries the provenance and the data file's digest, so a shard is finished exactly when its
index is there; one that was made from other settings or inputs is made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hapvr.errors import DataError
from hapvr.provenance import Provenance
from hapvr.storage.filesystem import DataRoot, read_schema_metadata
from hapvr.storage.tensors import TENSOR_KEY, encode_tensors

PROVENANCE_KEY = b"hapvr.provenance"
DATA_DIGEST_KEY = b"hapvr.data_sha256"
MAX_PAGE_BYTES = 1 << 30
STATUS_OK = "ok"
STATUS_FAILED = "failed"
INDEX_FIELDS = (
    pa.field("video_id", pa.string(), nullable=False),
    pa.field("status", pa.string(), nullable=False),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("message", pa.string(), nullable=False),
    pa.field("num_rows", pa.int64(), nullable=False),
)

Columns = Sequence[pa.Array | pa.ChunkedArray | npt.NDArray[Any] | Sequence[Any]]
"""Values of each column of a data file, all of one length N; [N, *shape] arrays for tensor columns."""


@dataclass(frozen=True)
class Shard:
    """One shard of one stage under a data root."""

    root: DataRoot
    stage: str
    key: str

    @property
    def data_name(self) -> str:
        return f"{self.stage}/{self.key}/data.parquet"

    @property
    def index_name(self) -> str:
        return f"{self.stage}/{self.key}/index.parquet"

    def provenance(self) -> Provenance | None:
        """What the finished shard was made from; None while there is none."""
        if not self.root.exists(self.index_name):
            return None
        with self.root.open(self.index_name) as file:
            text = read_schema_metadata(pq.read_schema(file), PROVENANCE_KEY)
        return Provenance.from_json(text)

    def is_finished(self, wanted: Provenance) -> bool:
        """True if the shard is there and was made from the same settings and inputs."""
        found = self.provenance()
        return found is not None and found.fingerprint == wanted.fingerprint

    def require(self, settings: dict[str, Any]) -> Provenance:
        """The provenance of a finished shard; raises DataError if there is none or if these settings differ, saying which."""
        found = self.provenance()
        if found is None:
            raise DataError(f"storage: {self.stage} of shard {self.key} is not there; materialise {self.stage} first")
        chosen = {key: found.settings.get(key) for key in settings}
        differences = Provenance(self.stage, settings).differences(Provenance(self.stage, chosen))
        if differences:
            raise DataError(
                f"storage: {self.stage} of shard {self.key} was made with other settings: {'; '.join(differences)}. "
                f"Materialise it again, or restore those settings"
            )
        return found

    def digest(self) -> str:
        """SHA-256 of the index, which holds the data file's digest."""
        return self.root.sha256(self.index_name)

    def data_digest(self) -> str:
        """SHA-256 of the data file as it was written. Raises DataError if the shard is unfinished."""
        if not self.root.exists(self.index_name):
            raise DataError(f"storage: {self.stage} of shard {self.key} is not there; materialise {self.stage} first")
        with self.root.open(self.index_name) as file:
            return read_schema_metadata(pq.read_schema(file), DATA_DIGEST_KEY)

    def index(self) -> pl.DataFrame:
        """One row per video: video_id, status, reason, message, num_rows and the stage's own columns."""
        if not self.root.exists(self.index_name):
            raise DataError(f"storage: {self.stage} of shard {self.key} is not there; materialise {self.stage} first")
        with self.root.open(self.index_name) as file:
            frame = pl.from_arrow(pq.read_table(file))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def open_data(self) -> pq.ParquetFile:
        """The data file. Raises DataError if the shard is unfinished."""
        if not self.root.exists(self.index_name):
            raise DataError(f"storage: {self.stage} of shard {self.key} is not there; materialise {self.stage} first")
        return pq.ParquetFile(self.root.open(self.data_name), pre_buffer=self.root.local is None)

    def write_index(
        self, rows: Iterable[dict[str, Any]], *, provenance: Provenance, fields: Sequence[pa.Field] = ()
    ) -> None:
        """Finish the shard. rows: INDEX_FIELDS plus `fields` of each video; the data file, if any, is already in place."""
        metadata = {PROVENANCE_KEY: provenance.to_json().encode()}
        if self.root.exists(self.data_name):
            metadata[DATA_DIGEST_KEY] = self.root.sha256(self.data_name).encode()
        schema = pa.schema([*INDEX_FIELDS, *fields], metadata=metadata)
        table = pa.Table.from_pylist(list(rows), schema=schema)
        with self.root.write(self.index_name) as stream:
            pq.write_table(table, stream, compression="zstd")

    def lock(self) -> AbstractContextManager[None]:
        """Held while the shard is made, so that two runs at once make it once; see `DataRoot.lock`."""
        return self.root.lock(f"{self.stage}/{self.key}")

    def delete_data(self) -> None:
        """Remove rows that the next index will not describe, and first the index that describes them."""
        if self.root.exists(self.data_name):
            self.root.delete(self.index_name)
            self.root.delete(self.data_name)

    @contextmanager
    def write_data(
        self, fields: Sequence[pa.Field], *, row_group_rows: int | None, compress: bool
    ) -> Iterator[RowWriter]:
        """A writer of data rows, see `RowWriter`. Until the block ends well, the old data and index stay readable.

        A block that fails leaves the old data and index as they were.
        """
        with self.root.write(self.data_name, invalidates=self.index_name) as stream:
            writer = RowWriter(stream, pa.schema(fields), row_group_rows=row_group_rows, compress=compress)
            try:
                yield writer
            except BaseException:
                writer.abandon()
                raise
            writer.close()


class RowWriter:
    """Writes rows into row groups of `row_group_rows` rows, or, if that is None, into a row group per call of `write`."""

    def __init__(self, stream: Any, schema: pa.Schema, *, row_group_rows: int | None, compress: bool) -> None:
        self.schema = schema
        self._rows = row_group_rows
        self._pending: list[pa.RecordBatch] = []
        self._count = 0
        # Tensors and JPEGs do not compress; a codec would only cost time.
        codec = "zstd" if compress else "none"
        self._writer = pq.ParquetWriter(
            stream,
            schema,
            compression=codec,
            use_dictionary=["video_id"],
            write_statistics=["video_id"],
            # A row group is one page, so that tensors can be read without Parquet's decoder (raw_tensors.py).
            data_page_size=MAX_PAGE_BYTES,
        )

    def write(self, columns: Columns) -> None:
        """Append N rows. columns: the values of each column of the schema, in its order."""
        arrays = [_encode(values, field) for values, field in zip(columns, self.schema, strict=True)]
        self._pending.append(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
        self._count += self._pending[-1].num_rows
        if self._rows is None or self._count >= self._rows:
            self._flush(whole_groups=self._rows is not None)

    def close(self) -> None:
        """Write what is pending and the footer."""
        self._flush(whole_groups=False)
        self._writer.close()

    def abandon(self) -> None:
        """Let go of the stream after an error; the file is of no use."""
        with suppress(OSError, pa.ArrowException):
            self._writer.close()

    def _flush(self, *, whole_groups: bool) -> None:
        table = pa.Table.from_batches(self._pending, schema=self.schema)
        size = self._rows or max(1, table.num_rows)
        end = table.num_rows // size * size if whole_groups else table.num_rows
        if end:
            self._writer.write_table(table.slice(0, end), row_group_size=size)
        rest = table.slice(end)
        self._pending = rest.to_batches()
        self._count = rest.num_rows


def _encode(values: Any, field: pa.Field) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    if TENSOR_KEY in (field.metadata or {}):
        return encode_tensors(np.asarray(values), field)
    return pa.array(values, field.type)


def index_row(
    video_id: str, num_rows: int, *, status: str = "", reason: str = "", message: str = "", **columns: Any
) -> dict[str, Any]:
    """A row of an index; a non-empty reason makes it `failed` unless a status is given. columns: the stage's own."""
    return {
        "video_id": video_id,
        "status": status or (STATUS_FAILED if reason else STATUS_OK),
        "reason": reason,
        "message": message.encode(errors="backslashreplace").decode(),  # names of files need not be UTF-8
        "num_rows": num_rows,
        **columns,
    }
