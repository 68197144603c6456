"""Shards: `<step>/<shard>/data.parquet` (rows) and `index.parquet` (one row per video, failures
with their reason).

The index is written last and carries the provenance and the data file's size and digest, so a shard
is finished exactly when its index exists. A shard that was made from other settings or inputs is
rebuilt. To the step that makes it, a damaged shard counts as missing; all who read it get a
DamagedError.

`hapvr.data.tensors` has columns of tensors, `hapvr.data.video_rows` reads single videos.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hapvr.data.filesystem import DataRoot, read_schema_metadata
from hapvr.data.tensors import encode_column
from hapvr.errors import DamagedError
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
    pa.field("video_id", pa.string(), nullable=False),
    pa.field("status", pa.string(), nullable=False),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("message", pa.string(), nullable=False),
    pa.field("num_rows", pa.int64(), nullable=False),
)
ROW_GROUP_ROWS = 256
"""At most; longer videos have several row groups."""

Columns = Sequence[pa.Array | pa.ChunkedArray | npt.NDArray[Any] | Sequence[Any]]
"""The values of each column of a data file, all of one length N; [N, *shape] arrays for tensor
columns.
"""
Places = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class ShardIndex:
    """The index of a finished shard."""

    provenance: Provenance
    table: pa.Table
    data_sha256: str
    """of the data file as it was written; "" if the shard has none"""

    def rows(self) -> list[dict[str, Any]]:
        """A row per video: video_id, status, reason, message, num_rows and the step's own
        columns."""
        return list(self.table.to_pylist())

    def frame(self) -> pl.DataFrame:
        """As `rows`."""
        import polars as pl  # an installation for searches has none

        return pl.DataFrame(self.table)

    def places(self) -> Places:
        """Video id -> its first row in the data file and its number of rows, in file order."""
        places: Places = {}
        start = 0
        names = ("video_id", "status", "num_rows")
        columns = [self.table.column(name).to_pylist() for name in names]
        for video_id, status, num_rows in zip(*columns, strict=True):
            if status == STATUS_OK:
                places[video_id] = (start, num_rows)
                start += num_rows

        return places


@dataclass(frozen=True)
class Shard:
    """One shard of one step below a data root."""

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
        """The index. Raises DataError if the shard is unfinished, DamagedError if the index, or the
        size of the data file, is not what was written."""
        with self.root.open(self.index_name) as file:
            data = file.read()

        with self.root.corruption_errors(self.index_name, hint=self.hint):
            table = read_table(pa.BufferReader(data))
            common = {field.name for field in INDEX_FIELDS}
            of_step = [
                field.with_nullable(True) for field in table.schema if field.name not in common
            ]
            check_columns(table, [*INDEX_FIELDS, *of_step])
            if len(table) and pc.min(table.column("num_rows")).as_py() < 0:
                raise ValueError("a video has a negative number of rows")
            provenance = Provenance.from_json(read_schema_metadata(table.schema, PROVENANCE_KEY))
            written_bytes = int(read_schema_metadata(table.schema, DATA_BYTES_KEY) or 0)

        num_bytes = self.root.num_bytes(self.data_name) if written_bytes else 0
        if num_bytes != written_bytes:
            raise DamagedError(
                f"storage: {self.data_name} below {self.root.url} has {num_bytes} bytes, "
                f"{written_bytes} were written; {self.hint}"
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
        index = self.find()
        return None if index is None else index.provenance

    def is_finished(self, wanted: Provenance) -> bool:
        """Whether the shard was made from these settings and inputs, and has its recorded size.
        Only `hapvr verify` reads all of it."""
        provenance = self.provenance()
        return provenance is not None and provenance.fingerprint == wanted.fingerprint

    def require(self, settings: dict[str, Any]) -> Provenance:
        """The provenance of a finished shard. Raises DataError if the shard is unfinished, or names
        the settings that differ from these; DamagedError if it is damaged."""
        provenance = self.read().provenance
        used = {key: provenance.settings.get(key) for key in settings}
        require_settings(
            used,
            settings,
            what=f"storage: {self.stage} of shard {self.key} was made with other settings",
            hint="Materialise it again, or restore those settings",
        )
        return provenance

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
        """Read all of the shard. Raises DataError if it is unfinished, DamagedError if its bytes
        are not those that were written."""
        written = self.read().data_sha256
        if not written:
            return
        digest = self.root.sha256(self.data_name)
        if digest != written:
            raise DamagedError(
                f"{self.data_name} has SHA-256 {digest[:16]}..., its index says "
                f"{written[:16]}...; {self.hint}"
            )

    def open_data(self) -> pq.ParquetFile:
        """The data file. Raises DataError where there is none, DamagedError where it is damaged."""
        with self.corruption_errors():
            return pq.ParquetFile(
                self.root.open(self.data_name),
                pre_buffer=self.root.local is None,
                page_checksum_verification=True,
            )

    def corruption_errors(self) -> AbstractContextManager[None]:
        """Turn errors in a block that reads the data file into a DamagedError that names it."""
        return self.root.corruption_errors(self.data_name, hint=self.hint)

    @property
    def hint(self) -> str:
        """What rebuilds a damaged shard."""
        return (
            f"run `hapvr verify --config FILE --repair`, which rebuilds {self.stage} of shard "
            f"{self.key}"
        )

    def write_index(
        self,
        rows: Iterable[dict[str, Any]],
        *,
        provenance: Provenance,
        fields: Sequence[pa.Field] = (),
    ) -> None:
        """Finish the shard. rows: INDEX_FIELDS and `fields` of each video; the data file, if any,
        is already in place."""
        metadata = {PROVENANCE_KEY: provenance.to_json().encode()}
        if self.root.exists(self.data_name):
            metadata[DATA_DIGEST_KEY] = self.root.sha256(self.data_name).encode()
            metadata[DATA_BYTES_KEY] = str(self.root.num_bytes(self.data_name)).encode()

        schema = pa.schema([*INDEX_FIELDS, *fields], metadata=metadata)
        table = pa.Table.from_pylist(list(rows), schema=schema)
        with self.root.write(self.index_name) as stream:
            write_table(table, stream)

    def lock(self) -> AbstractContextManager[None]:
        """Held while the shard is made, so that two runs at once make it only once; see
        `DataRoot.lock`."""
        return self.root.lock(f"{self.stage}/{self.key}")

    @contextmanager
    def write_data(self, fields: Sequence[pa.Field]) -> Iterator[Callable[[Columns], None]]:
        """A function that writes the rows of one video into row groups of their own; it takes the
        values of each column, in the order of the fields. Until the block ends well, the old data
        and index stay readable."""
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
                    encode_column(values, field)
                    for values, field in zip(columns, schema, strict=True)
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
    fate = STATUS_FAILED if reason else STATUS_OK
    return {
        "video_id": video_id,
        "status": status or fate,
        "reason": reason,
        # Names of files need not be UTF-8.
        "message": message.encode(errors="backslashreplace").decode(),
        "num_rows": num_rows,
        **columns,
    }


def frame_fields(*stored: pa.Field) -> tuple[pa.Field, ...]:
    """The columns of a shard with a row per frame. stored: those of what is kept of a frame."""
    return (
        pa.field("video_id", pa.string(), nullable=False),
        pa.field("frame_index", pa.int32(), nullable=False),
        pa.field("timestamp_s", pa.float64(), nullable=False),
        *stored,
    )


def frame_columns(video_id: str, timestamps_s: Sequence[float], *stored: Any) -> Columns:
    """The rows of one video, column by column in the order of `frame_fields`. timestamps_s: T
    seconds; stored: T values each."""
    count = len(timestamps_s)
    return ([video_id] * count, range(count), timestamps_s, *stored)
