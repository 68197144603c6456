"""Small tables: whatever bit flips, a reader gets what was written or an error."""

from __future__ import annotations

import io
import random
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hapvr.storage.filesystem import DATA_ERRORS, read_schema_metadata
from hapvr.tables import TABLE_ERRORS, read_frame, read_schema, read_table, write_table

FIELDS = [
    pa.field("video_id", pa.string(), nullable=False),
    pa.field("seconds", pa.float64()),
    pa.field("rows", pa.int64()),
    pa.field("checked_at", pa.timestamp("ms", tz="UTC")),
]
TABLE = pa.table(
    {
        "video_id": [f"in/{number}.mp4" for number in range(40)],
        "seconds": [0.5, None] * 20,
        "rows": list(range(40)),
        "checked_at": [0] * 40,
    },
    schema=pa.schema(FIELDS, metadata={b"hapvr.provenance": b'{"fps": 1}'}),
)


def written(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    write_table(table, stream)
    return stream.getvalue()


def test_what_was_written_comes_back() -> None:
    data = written(TABLE)
    found = read_table(io.BytesIO(data))
    assert found.equals(TABLE)
    assert found.schema.field("video_id").nullable is False
    assert read_schema(io.BytesIO(data)).metadata[b"hapvr.provenance"] == b'{"fps": 1}'
    assert written(found) == data, "a table can be written again"
    seconds = TABLE.set_column(3, "checked_at", TABLE["checked_at"].cast(pa.timestamp("s", tz="UTC")))
    assert read_table(io.BytesIO(written(seconds))).equals(TABLE)


def test_no_flipped_bit_gives_another_table() -> None:
    """Without checksums a third of all flips would give other values, and some of them a panic of Polars."""
    data = written(TABLE)
    refused = 0
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        try:
            found = read_table(io.BytesIO(changed))
        except DATA_ERRORS:
            refused += 1
            continue
        assert found.equals(TABLE), place
        # All metadata may be lost at once; then there is no provenance, which its readers notice.
        assert read_schema_metadata(found.schema, b"hapvr.provenance") in ('{"fps": 1}', ""), place
    assert refused > len(data) // 3


def test_tables_of_earlier_versions_are_read() -> None:
    stream = io.BytesIO()
    pq.write_table(TABLE, stream, compression="zstd")
    assert read_table(io.BytesIO(stream.getvalue())).equals(TABLE)


def test_rows_that_are_missing_are_noticed() -> None:
    """A footer of a shorter table does not pass for the whole one."""
    stream = io.BytesIO()
    metadata = read_schema(io.BytesIO(written(TABLE))).metadata
    pq.write_table(TABLE.slice(0, 10).replace_schema_metadata(metadata), stream)
    with pytest.raises(ValueError, match="checksum"):
        read_table(io.BytesIO(stream.getvalue()))


def test_damaged_files_of_others_raise_errors(tmp_path: Path) -> None:
    """Polars' own reader panics, and after some hundred such files it asks for 2 exabytes and ends the process."""
    rows = {"url": [f"http://a/{number}.mp4" for number in range(200)], "start_s": [0.5, None] * 100}
    path, rng = tmp_path / "pairs.parquet", random.Random(0)
    pl.DataFrame(rows).write_parquet(path)
    data, refused = path.read_bytes(), 0
    assert read_frame(path).equals(pl.DataFrame(rows))
    for _ in range(1000):
        changed = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 5])):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        try:
            read_frame(path)
        except TABLE_ERRORS:
            refused += 1
    assert refused > 300
