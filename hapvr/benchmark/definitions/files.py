"""Reading the text, JSON, CSV and Parquet files of benchmarks. Each reader raises DataError with the file and what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import polars as pl
from pydantic import BaseModel, Field

from hapvr.errors import DamagedError, DataError
from hapvr.files import read_json_as, require_regular
from hapvr.tables import TABLE_ERRORS, read_frame, read_user_table

Value = TypeVar("Value")

HINT = "is this the folder of the data set?"
FORMAT_VERSION = 1


class _Head(BaseModel, extra="allow"):
    """benchmark.json. name: also of folders, so it leads nowhere else; that of the folder where it is absent."""

    kind: str
    format_version: Annotated[int, Field(ge=FORMAT_VERSION, le=FORMAT_VERSION)]
    name: Annotated[str, Field(pattern=r"^[^./\\\x00][^/\\\x00]{0,199}$")] = ""
    provenance: dict[str, Any] = {}


def read_head(path: Path) -> dict[str, Any]:
    """The benchmark.json of a folder."""
    return read_json_as(path, _Head, hint="write the benchmark again").model_dump(exclude_unset=True)


def read_json(path: Path, kind: type[Value]) -> Value:
    """The value in a JSON file that its authors published. kind: its type, as pydantic knows it."""
    return read_json_as(path, kind, hint=HINT)


def read_lines(path: Path) -> list[str]:
    """The stripped lines of a text file without empty ones."""
    try:
        require_regular(path)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedError(f"{path}: cannot be read as text ({error}); {HINT}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def split_line(line: str, *, path: Path, columns: int, separator: str | None = None) -> list[str]:
    """The fields of a line of a file, which must be `columns` or more."""
    fields = [field.strip() for field in line.split(separator)]
    if len(fields) < columns:
        raise DataError(f"{path}: line {line!r:.200} has {len(fields)} fields, wanted {columns} or more")
    return fields


def read_rows(
    path: Path, *, columns: int, separator: str | None = None, values: Sequence[str] = (), at: int = 0
) -> list[list[str]]:
    """The first `columns` fields of each line. values: those that the field `at` may have; none for any."""
    rows = [split_line(line, path=path, columns=columns, separator=separator)[:columns] for line in read_lines(path)]
    wrong = next((row for row in rows if values and row[at] not in values), None)
    if wrong is not None:
        raise DataError(f"{path}: line {' '.join(wrong)!r:.200} has {wrong[at]!r:.50}, wanted {', '.join(values)}")
    return rows


def read_csv(path: Path, schema: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    """These columns of a CSV file."""
    try:
        table = read_user_table(path)
        return table.select(pl.col(name).cast(kind) for name, kind in schema.items())
    except (*TABLE_ERRORS, pl.exceptions.PolarsError) as error:
        raise DamagedError(
            f"{path}: cannot be read as CSV with columns {', '.join(schema)} ({error}); {HINT}"
        ) from error


def read_stored(path: Path, schema: Mapping[str, type[pl.DataType]], *, may_lack: Sequence[str] = ()) -> pl.DataFrame:
    """The columns of a table that this package wrote. may_lack: columns that have no value in some rows."""
    try:
        table = read_frame(path).with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
        for column, dtype in schema.items():
            found = table.schema.get(column)
            if found != dtype or (column not in may_lack and table[column].null_count()):
                raise ValueError(f"its column {column} is {found}, wanted {dtype.__name__} in every row")
    except TABLE_ERRORS as error:
        raise DamagedError(f"{path}: {error}; write the benchmark again, or install the package again") from error
    return table.select(list(schema))


def only_file(folder: Path, pattern: str) -> Path:
    """The one file of a folder whose name has this pattern."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise DataError(f"{folder}: {len(found)} files {pattern}, wanted one; {HINT}")
    return found[0]
