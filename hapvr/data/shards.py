"""Shards: `<step>/<shard>/data.parquet` (rows) and `index.parquet` (one row per video, failures with their reason).

The index is written last and carries the provenance and the data file's size and digest, so a shard is finished exactly
when its index is there. A shard that was made from other settings or inputs is made again. A damaged shard counts as
missing for the step that makes it; those that read it get a DamagedError.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hapvr.data.filesystem import DataRoot, read_schema_metadata
from hapvr.data.tensors import TENSOR_KEY, encode_tensors
from hapvr.errors import DamagedError, DataError
from hapvr.provenance import Provenance
from hapvr.tables import check_columns, read_schema, read_table, write_table

if TYPE_CHECKING:
    import polars as pl

PROVENANCE_KEY = b"hapvr.provenance"
DATA_DIGEST_KEY = b"hapvr.data_sha256"
DATA_BYTES_KEY = b"hapvr.data_bytes"
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

Parsed = TypeVar("Parsed")
Columns = Sequence[pa.Array | pa.ChunkedArray | npt.NDArray[Any] | Sequence[Any]]
"""Values of each column of a data file, all of one length N; [N, *shape] arrays for tensor columns."""


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

    def provenance(self) -> Provenance | None:
        """What the finished shard was made from; None while there is none.

        A shard whose index cannot be read, or whose data file does not have the recorded size, counts as none; a warning
        says so.
        """
        return self._unless_damaged(self._provenance)

    def finished_index(self) -> tuple[Provenance, pl.DataFrame] | None:
        """Provenance and index of a finished shard; None while there is none. A damaged shard counts as none."""
        return self._unless_damaged(lambda: (found, self.index()) if (found := self._provenance()) else None)

    def finished_rows(self) -> tuple[Provenance, list[dict[str, Any]]] | None:
        """As `finished_index`, with the rows as of `rows`."""
        return self._unless_damaged(lambda: (found, self.rows()) if (found := self._provenance()) else None)

    def is_finished(self, wanted: Provenance) -> bool:
        """Whether the shard exists, was made from the same settings and inputs, and passes the cheap checks of readability.

        These are: the index, the size of the data file, and the data file's footer. `hapvr verify` reads all.
        """

        def look() -> bool:
            found = self._provenance()
            if found is None or found.fingerprint != wanted.fingerprint:
                return False
            self._read_index(_parse_index)
            if self.data_digest():
                self.open_data().close()
            return True

        return bool(self._unless_damaged(look))

    def _unless_damaged(self, read: Callable[[], Parsed]) -> Parsed | None:
        try:
            return read()
        except DamagedError as error:
            warnings.warn(f"{error}. It counts as missing", stacklevel=3)
            return None

    def require(self, settings: dict[str, Any]) -> Provenance:
        """The provenance of a finished shard.

        Raises DataError if there is none or if these settings differ, saying which; DamagedError if it is damaged.
        """
        found = self._provenance()
        if found is None:
            raise self._missing()
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
        """SHA-256 of the data file as it was written; "" if the shard has none. Raises DataError if it is unfinished."""
        return read_schema_metadata(self._read_index(read_schema), DATA_DIGEST_KEY)

    def index(self) -> pl.DataFrame:
        """One row per video: video_id, status, reason, message, num_rows and the step's own columns.

        Raises DataError if the shard is unfinished, DamagedError if the index cannot be read.
        """
        import polars as pl  # what searches alone needs none

        return pl.DataFrame(self._read_index(_parse_index))

    def rows(self) -> list[dict[str, Any]]:
        """The rows of `index` as dicts. Raises as it does."""
        rows: list[dict[str, Any]] = self._read_index(_parse_index).to_pylist()
        return rows

    def open_data(self) -> pq.ParquetFile:
        """The data file. Raises DataError if the shard is unfinished, DamagedError if the file is not what was written."""
        if self._provenance() is None:
            raise self._missing()
        with self.corruption_errors():
            return pq.ParquetFile(self.root.open(self.data_name), pre_buffer=self.root.local is None)

    def corruption_errors(self) -> AbstractContextManager[None]:
        """Turn errors of a block that reads the data file into a DamagedError with its name."""
        return self.root.corruption_errors(self.data_name, hint=self.hint)

    @property
    def hint(self) -> str:
        """What makes a damaged shard again."""
        return f"run `hapvr verify --config FILE --repair`, which makes {self.stage} of shard {self.key} again"

    def _missing(self) -> DataError:
        return DataError(f"storage: {self.stage} of shard {self.key} is not there; materialise {self.stage} first")

    def _provenance(self) -> Provenance | None:
        return self._read_index(self._parse_provenance) if self.root.exists(self.index_name) else None

    def _parse_provenance(self, file: Any) -> Provenance:
        schema = read_schema(file)
        if recorded := read_schema_metadata(schema, DATA_BYTES_KEY):
            found = self.root.num_bytes(self.data_name) if self.root.exists(self.data_name) else None
            if found != int(recorded):
                state = "is missing" if found is None else f"has {found} bytes"
                raise DamagedError(
                    f"storage: {self.data_name} below {self.root.url} {state}, {recorded} were written; {self.hint}"
                )
        return Provenance.from_json(read_schema_metadata(schema, PROVENANCE_KEY))

    def _read_index(self, parse: Callable[[Any], Parsed]) -> Parsed:
        if not self.root.exists(self.index_name):
            raise self._missing()
        with self.root.open(self.index_name) as file:
            # An index in an object store is read first: a connection that breaks is not damage.
            source = file if self.root.local is not None else pa.BufferReader(file.read())
            with self.root.corruption_errors(self.index_name, hint=self.hint):
                return parse(source)

    def write_index(
        self,
        rows: Iterable[dict[str, Any]],
        *,
        provenance: Provenance,
        fields: Sequence[pa.Field] = (),
        data: RowWriter | None = None,
    ) -> None:
        """Finish the shard. rows: INDEX_FIELDS plus `fields` of each video; the data file, if any, is already in place.

        data: what wrote the data file, which knows its digest; None: the file is read for it.
        """
        metadata = {PROVENANCE_KEY: provenance.to_json().encode()}
        if self.root.exists(self.data_name):
            sha256 = self.root.sha256(self.data_name) if data is None else data.sha256
            metadata[DATA_DIGEST_KEY] = sha256.encode()
            metadata[DATA_BYTES_KEY] = str(self.root.num_bytes(self.data_name)).encode()
        schema = pa.schema([*INDEX_FIELDS, *fields], metadata=metadata)
        table = pa.Table.from_pylist(list(rows), schema=schema)
        with self.root.write(self.index_name) as stream:
            write_table(table, stream)

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


class _HashingFile(io.RawIOBase):
    """Writes to a stream and computes the SHA-256 of what passes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self._stream.write(data)
        return len(data)


class RowWriter:
    """Writes rows into row groups of `row_group_rows` rows, or, if that is None, into a row group per call of `write`."""

    def __init__(self, stream: Any, schema: pa.Schema, *, row_group_rows: int | None, compress: bool) -> None:
        self.schema = schema
        self._rows = row_group_rows
        self._pending: list[pa.RecordBatch] = []
        self._count = 0
        # Tensors and JPEGs do not compress; a codec would only cost time.
        codec = "zstd" if compress else "none"
        self._file = _HashingFile(stream)
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            compression=codec,
            use_dictionary=["video_id"],
            write_statistics=["video_id"],
            data_page_size=MAX_PAGE_BYTES,
        )

    @property
    def sha256(self) -> str:
        """Hex digest of the file, after `close`."""
        return self._file.digest.hexdigest()

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


def _parse_index(file: Any) -> pa.Table:
    table = read_table(file)
    names = {field.name for field in INDEX_FIELDS}
    check_columns(
        table, [*INDEX_FIELDS, *(field.with_nullable(True) for field in table.schema if field.name not in names)]
    )
    if len(table) and pc.min(table.column("num_rows")).as_py() < 0:
        raise ValueError("a video has a negative number of rows")
    return table


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
    """A row of an index; a non-empty reason makes it `failed` unless a status is given. columns: the step's own."""
    return {
        "video_id": video_id,
        "status": status or (STATUS_FAILED if reason else STATUS_OK),
        "reason": reason,
        "message": message.encode(errors="backslashreplace").decode(),  # names of files need not be UTF-8
        "num_rows": num_rows,
        **columns,
    }
