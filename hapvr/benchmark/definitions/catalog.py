"""Finding a benchmark by name or folder."""

from __future__ import annotations

import json
from pathlib import Path

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.definitions.clips import FORMAT_VERSION, read_clips
from hapvr.errors import DataError


def load_definition(name_or_folder: str | Path) -> BenchmarkDefinition:
    """The benchmark in a folder with a benchmark.json. DataError where there is none that can be read."""
    folder = Path(name_or_folder)
    file = folder / "benchmark.json"
    try:
        head = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"benchmark {str(name_or_folder)!r}: {file} cannot be read ({error})") from error
    if not isinstance(head, dict) or head.get("kind") != "clips" or head.get("format_version") != FORMAT_VERSION:
        raise DataError(
            f"{file}: kind and format_version are {head.get('kind') if isinstance(head, dict) else head!r}; "
            f"wanted 'clips' and {FORMAT_VERSION}"
        )
    return read_clips(folder, head=head)
