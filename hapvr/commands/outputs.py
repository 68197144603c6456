"""`--out` of searches and duplicates: a table, or tasks of Label Studio."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from warnings import warn

from typer import Option

from hapvr.commands import terminal
from hapvr.errors import ArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

    from hapvr.search.label_studio import Pair
    from hapvr.steps.searcher import Searcher

OUT_SUFFIXES = (".csv", ".parquet")
TASKS_SUFFIX = ".label-studio.json"
OutOption = Annotated[
    Path | None, Option(help=f"Also write a .csv, a .parquet, or tasks to NAME{TASKS_SUFFIX}.")
]


def check_out(out: Path | None) -> None:
    """Raise ArgumentError for a name that `write_out` cannot use."""
    terminal.require_outside(out)
    if out is None or out.name.endswith(TASKS_SUFFIX):
        return
    if out.suffix.lower() not in OUT_SUFFIXES:
        wanted = ", ".join((*OUT_SUFFIXES, TASKS_SUFFIX))
        raise ArgumentError(
            f"--out is {str(out)!r:.200}; expected a name that ends in one of {wanted}"
        )


def write_table(out: Path, rows: pa.Table) -> None:
    """Write rows to a file, in the format that its suffix says."""
    from hapvr.files import write_atomic
    from hapvr.tables import export_table

    with write_atomic(out) as part:
        export_table(rows, part, out.suffix.lower())


def write_out(out: Path, rows: pa.Table, pairs: Sequence[Pair], searcher: Searcher) -> None:
    """Write rows as a table, or pairs as tasks of Label Studio, by the suffix."""
    if not out.name.endswith(TASKS_SUFFIX):
        return write_table(out, rows)

    from hapvr.files import write_atomic
    from hapvr.search.label_studio import label_studio_tasks

    def path_of(name: str) -> Path | None:
        path = searcher.collection.metadata.of(name).path
        if path is None and Path(name).is_file():
            return Path(name).resolve()
        return path

    def whole(name: str) -> str:  # marks may be imported in another folder
        return name if searcher.collection.metadata.of(name).path else str(Path(name).resolve())

    named = [
        (whole(first), whole(second), verdict, probability)
        for first, second, verdict, probability in pairs
    ]
    tasks = label_studio_tasks(named, path_of)
    num_skipped = len(pairs) - len(tasks)
    if num_skipped:
        warn(f"{out}: {num_skipped} pairs are skipped, as a video of theirs has no file here")
    with write_atomic(out) as part:
        part.write_text(json.dumps(tasks, ensure_ascii=False, indent=1), encoding="utf-8")
