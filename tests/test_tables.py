"""Small tables: whatever bit flips, a reader gets what was written or an error."""

import io
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hapvr import tables
from hapvr.data.filesystem import DATA_ERRORS, read_schema_metadata
from hapvr.tables import MAX_USER_BYTES, read_table, read_user_table, write_csv, write_table

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


def test_no_flipped_bit_gives_another_table() -> None:
    """Without checksums a third of all flips would give other values, and some of them a panic of
    Polars."""
    data = written(TABLE)
    assert read_table(io.BytesIO(data)).equals(TABLE)
    assert written(read_table(io.BytesIO(data))) == data, "a table can be written again"
    refused = 0
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        try:
            table = read_table(io.BytesIO(changed))
        except DATA_ERRORS:
            refused += 1
            continue

        assert table.equals(TABLE), place
        # All metadata may be lost at once; then there is no provenance, which its readers notice.
        assert read_schema_metadata(table.schema, b"hapvr.provenance") in ('{"fps": 1}', ""), place

    assert refused > len(data) // 3


@pytest.mark.parametrize("name", ["l[1].csv", "l*.csv", "l?.csv"])
def test_a_users_table_is_read_by_its_name(tmp_path: Path, name: str) -> None:
    """Characters of patterns are part of it."""
    for matching in ("l1.csv", "la.csv"):
        (tmp_path / matching).write_text("url\nof another\n")
    (tmp_path / name).write_text(f"url\n{name}\n")
    assert read_user_table(tmp_path / name)["url"].to_list() == [name]


def test_a_users_table_may_hold_times_that_python_has_not(tmp_path: Path) -> None:
    far = {
        "date": pa.array([2**31 - 1], pa.date32()),
        "moments": pa.array([[2**62]], pa.list_(pa.timestamp("us"))),
    }
    pq.write_table(pa.table({"url": ["a"], **far}), tmp_path / "years.parquet")
    assert read_user_table(tmp_path / "years.parquet").rows() == [("a",)]


def test_texts_that_repeat_are_read_as_categories(tmp_path: Path) -> None:
    """So that a hundred million pairs fit: a name takes four bytes a row, whatever its length."""
    table = pa.table({"name": ["a" * 40, "b" * 40] * 3, "other": ["c"] * 6, "score": range(6)})
    pq.write_table(table, tmp_path / "pairs.parquet", row_group_size=2)
    read = read_user_table(tmp_path / "pairs.parquet", categories=["name", "none", "score"])
    assert read.schema["name"] == pl.Categorical
    assert read.schema["other"] == pl.String
    assert read.rows() == read_user_table(tmp_path / "pairs.parquet").rows()


def test_a_checksum_is_kept_where_categories_are_asked_for(tmp_path: Path) -> None:
    """Such a table is read as it was written."""
    with (tmp_path / "small.parquet").open("wb") as stream:
        write_table(pa.table({"name": ["a", "b"]}), stream)
    assert read_user_table(tmp_path / "small.parquet", categories=["name"]).rows() == [
        ("a",),
        ("b",),
    ]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("twice.csv", "a column twice"),
        ("large.csv", "at most"),
        ("bomb.parquet", "bytes of memory"),
        ("none.csv", "No such file"),
    ],
)
def test_a_users_table_beyond_the_limits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, problem: str
) -> None:
    """What stands for more than memory holds, is no table, or is no file."""
    monkeypatch.setattr(tables, "USER_MEMORY_BYTES", 1 << 31)
    (tmp_path / "twice.csv").write_text("url,video_id,url\na,b,c\n")
    with (tmp_path / "large.csv").open("wb") as file:
        file.truncate(MAX_USER_BYTES + 1)
    urls = pa.DictionaryArray.from_arrays(pa.array([0] * 8000, pa.int32()), ["x" * 10**6])
    pq.write_table(
        pa.table({"url": urls}), tmp_path / "bomb.parquet", compression="zstd", store_schema=False
    )
    with pytest.raises((OSError, ValueError), match=problem):
        read_user_table(tmp_path / name)


def test_no_text_is_a_formula_of_a_spreadsheet_or_ends_its_line() -> None:
    """A file may be called so; numbers stay numbers."""
    file = io.StringIO()
    write_csv(
        ["name", "number"],
        [{"name": begin + "1", "number": -1} for begin in (*"=+-@", "a\r=")],
        file,
    )
    assert file.getvalue() == "name,number\n'=1,-1\n'+1,-1\n'-1,-1\n'@1,-1\na\\r=1,-1\n"
