"""Reading the text and JSON files in which benchmarks are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from hapvr.errors import DataError
from hapvr.files import read_json_as, require_regular


class _Head(BaseModel, extra="allow"):
    """benchmark.json. name: also of folders, so it leads nowhere else; that of the folder where it is absent."""

    kind: str
    format_version: Annotated[int, Field(ge=0, lt=2**31)]
    name: Annotated[str, Field(pattern=r"^[^./\\\x00][^/\\\x00]{0,199}$")] = ""
    provenance: dict[str, Any] = {}


def read_head(path: Path) -> dict[str, Any]:
    """The benchmark.json of a folder. Raises DamagedError for one that cannot be used."""
    return read_json_as(path, _Head, remedy="write the benchmark again").model_dump(exclude_unset=True)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises DataError if there is none."""
    try:
        require_regular(path)
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error}); is this the folder of the data set?") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds a {type(content).__name__}, wanted a JSON object")
    return content


def read_lines(path: Path) -> list[str]:
    """The stripped lines of `path` without empty ones. Raises DataError if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text ({error}); is this the folder of the data set?") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def split_line(line: str, *, path: Path, columns: int, separator: str | None = None) -> list[str]:
    """The fields of a line. Raises DataError if there are fewer than `columns`."""
    fields = [field.strip() for field in line.split(separator)]
    if len(fields) < columns:
        raise DataError(f"{path}: line {line!r} has {len(fields)} fields, wanted {columns} or more")
    return fields
