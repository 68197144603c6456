"""Reading tables that may be damaged, and writing small ones that notice a flipped bit.

The pages of these carry checksums, and their metadata has one of the schema. Tables of others have
none. Arrow reads them all: on a damaged file Polars' own reader panics, or ends the process.
"""

from __future__ import annotations

import csv
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from hapvr.errors import ArgumentError
from hapvr.files import open_regular, read_bytes, require_regular, write_atomic
from hapvr.workers import call_limited

if TYPE_CHECKING:
    import polars as pl

TABLE_ERRORS = (OSError, ValueError, pa.ArrowException)
"""What reading a damaged table raises."""

MAX_USER_BYTES = 1 << 30
"""Maximum size of a user's table."""
USER_MEMORY_BYTES = 6 << 30
USER_TIMEOUT_S = 300.0
"""What reading one may take: a few bytes can stand for terabytes, or for millions of columns."""

_CHECKSUM_KEY = b"hapvr.checksum"


def write_table(table: pa.Table, stream: Any) -> None:
    """Write a table with a CRC-32 of each page and one of its schema. stream: an open file."""
    metadata = {**(table.schema.metadata or {}), _CHECKSUM_KEY: _checksum(table).encode()}
    pq.write_table(
        table.replace_schema_metadata(metadata),
        stream,
        compression="zstd",
        write_page_checksum=True,
    )


def read_table(file: Any, *, categories: Sequence[str] = ()) -> pa.Table:
    """The table in an open file. Raises one of TABLE_ERRORS where it is not what was written.

    categories: columns of texts that repeat, which take an eighth of the memory as dictionaries; a
    table that records a checksum is read without, as the checksum is of its values"""
    parquet = pq.ParquetFile(file, page_checksum_verification=True)
    texts = _texts(parquet.schema_arrow, categories)
    if texts:
        file.seek(0)
        parquet = pq.ParquetFile(file, page_checksum_verification=True, read_dictionary=texts)

    # Threads triple the time of small files.
    table = parquet.read(use_threads=False)
    recorded = (table.schema.metadata or {}).get(_CHECKSUM_KEY, b"").decode()
    if recorded and recorded != _checksum(table):
        raise ValueError("its checksum is another one")
    table.validate(full=True)
    # Metadata of single fields is of no use, and Polars panics where a name in it is not UTF-8.
    plain = pa.schema([pa.field(field.name, field.type, field.nullable) for field in table.schema])
    return pa.Table.from_arrays(table.columns, schema=plain.with_metadata(table.schema.metadata))


def _texts(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """The columns of these names that hold texts; none of a table that records its checksum."""
    if _CHECKSUM_KEY in (schema.metadata or {}):
        return []
    return [field.name for field in schema if field.name in names and field.type == pa.string()]


def read_frame(path: Path, *, categories: Sequence[str] = ()) -> pl.DataFrame:
    """The table in a Parquet file of anybody, see `read_table`. Raises one of TABLE_ERRORS."""
    import polars as pl

    with open_regular(path) as file:
        table = read_table(file, categories=categories)
    try:
        frame = pl.from_arrow(table)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ValueError(str(error)) from error

    assert isinstance(frame, pl.DataFrame)
    return frame


def read_user_table(
    path: Path, *, categories: Sequence[str] = (), memory_bytes: int = 0
) -> pl.DataFrame:
    """The table in a CSV (all columns as text) or .parquet file that a user wrote, read by a
    process with limits. Raises one of TABLE_ERRORS or pl.exceptions.PolarsError; NoDataError for an
    empty CSV.

    categories: see `read_table`
    memory_bytes: of that process; 0 for USER_MEMORY_BYTES
    """
    require_regular(path, max_bytes=MAX_USER_BYTES)
    return call_limited(
        partial(_read_user_table, categories=categories),
        path,
        memory_bytes=memory_bytes or USER_MEMORY_BYTES,
        timeout_s=USER_TIMEOUT_S,
    )


def _read_user_table(path: Path, categories: Sequence[str]) -> pl.DataFrame:
    """Runs in a process with limits."""
    os.environ["POLARS_MAX_THREADS"] = (
        "1"  # each thread takes address space, and where that ends Polars panics
    )
    import polars as pl
    import polars.selectors as cs

    if path.suffix.lower() == ".parquet":
        return read_frame(path, categories=categories).drop(
            cs.temporal(), cs.nested()
        )  # nobody asks for these; Python has fewer years

    # Polars takes `[`, `*` and `?` in a name for a pattern, and reads other files.
    data = read_bytes(path)
    names = [
        name
        for name in pl.read_csv(data, has_header=False, n_rows=1, infer_schema=False).row(0)
        if name
    ]
    if len(set(names)) < len(names):
        raise ValueError("it names a column twice")
    if any("\r" in name for name in names):
        raise ValueError("its lines end in carriage returns alone; save it with line feeds")
    return pl.read_csv(data, infer_schema=False)


def check_columns(table: pa.Table, fields: Iterable[pa.Field]) -> None:
    """Raise ValueError unless a table has each of these columns once, of this type, and with a
    value wherever one is due."""
    for field in fields:
        places = table.schema.get_all_field_indices(field.name)
        if len(places) != 1 or table.schema.field(places[0]).type != field.type:
            wanted = f"column {field.name} of type {field.type}"
            raise ValueError(
                f"it has no one {wanted}: another version made it; delete it and run again"
            )
        if table.column(places[0]).null_count and not field.nullable:
            raise ValueError(f"its column {field.name} has rows without a value")


def export_table(table: pa.Table, path: Path, kind: str) -> None:
    """Write a table for other programs. kind: .csv with a line of names, .parquet, or .json for a
    list of objects. Raises OSError."""
    if kind == ".parquet":
        pq.write_table(table, path, compression="zstd")
    elif kind == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            write_csv(table.column_names, table.to_pylist(), file)
    else:
        path.write_text(json.dumps(table.to_pylist(), ensure_ascii=False), encoding="utf-8")


def write_csv(names: Sequence[str], rows: Iterable[Mapping[str, Any]], file: TextIO) -> None:
    """A line of names, and a line for each row, whose values are in the order of the names. A text
    that a spreadsheet would take for a formula gets a quote before it, and a carriage return, which
    many take for the end of a line, becomes \\r."""

    def cell(value: Any) -> Any:
        if isinstance(value, str):
            return "'" * value.startswith(("=", "+", "-", "@", "\t", "\r")) + value.replace(
                "\r", "\\r"
            )
        return str(value).lower() if isinstance(value, bool) else value

    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(map(cell, row.values()) for row in rows)


def export_csv(names: Sequence[str], rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """`write_csv` to the `--out` of a verb. Raises ArgumentError for a name that is not of a .csv
    file: a video may have it."""
    if path.suffix.lower() != ".csv":
        raise ArgumentError(f"--out is {str(path)!r:.200}; expected a name that ends in .csv")
    with write_atomic(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        write_csv(names, rows, file)


def _checksum(table: pa.Table) -> str:
    """CRC-32 of names, types and metadata, in hexadecimal, and the number of rows."""
    metadata = {
        key: value for key, value in (table.schema.metadata or {}).items() if key != _CHECKSUM_KEY
    }
    fields = [(field.name, str(field.type), field.nullable) for field in table.schema]
    return f"{zlib.crc32(repr((fields, sorted(metadata.items()))).encode()):08x} {len(table)}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of these columns, as text without a last line end; bars within cells are escaped."""
    escaped = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    ruler = ["---" for _ in head]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ruler, *escaped))
