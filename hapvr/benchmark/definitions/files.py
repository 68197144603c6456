"""Reading the text and JSON files in which benchmarks are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hapvr.errors import DataError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises DataError if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
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
