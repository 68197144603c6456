"""`hapvr benchmarks list | show | make`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hapvr.commands.terminal import JsonOption, exit_codes, progress_bar, show
from hapvr.files import write_atomic

if TYPE_CHECKING:
    from hapvr.benchmark.definition import BenchmarkDefinition

app = typer.Typer(
    no_args_is_help=True, help="Benchmark definitions: those that ship, and ones made from your own clips."
)


@app.command("list")
@exit_codes
def list_(as_json: JsonOption = False) -> None:
    """The definitions that ship with the package."""
    from hapvr.benchmark.definitions.catalog import list_definitions

    found = list_definitions()
    text = "\n".join(f"{name:<18} {description}" for name, description in found.items())
    show({"benchmarks": found}, as_json=as_json, text=text)


@app.command("show")
@exit_codes
def show_(
    benchmark: Annotated[str, typer.Argument(help="A known benchmark, or the folder of one.")],
    queries: Annotated[
        Path | None,
        typer.Option(help="Write the queries to this CSV: query_id and its number of relevant videos by task."),
    ] = None,
    benchmark_files: Annotated[
        Path | None, typer.Option(help="Read the benchmark from this folder of its authors' files.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What a benchmark holds: queries, database videos, labelled pairs and tasks."""
    from hapvr.benchmark.definitions.catalog import load_definition

    definition = load_definition(benchmark, published_files=benchmark_files)
    labels = dict(definition.labels["label"].value_counts().sort("label").iter_rows())
    result = {
        "name": definition.name,
        "queries": len(definition.queries),
        "database": len(definition.database),
        "labels": labels,
        "tasks": {task.name: task.metric for task in definition.tasks},
        "queries_file": None if queries is None else str(queries),
    }
    if queries is not None:
        _write_queries(definition, queries)
    show(result, as_json=as_json, text="\n".join(f"{key}: {value}" for key, value in result.items()))


def _write_queries(definition: BenchmarkDefinition, path: Path) -> None:
    import polars as pl

    from hapvr.benchmark.ranking import ranked_pairs, relevant_pairs

    counts = {
        task.name: (relevant_pairs(definition, task.positives) & ranked_pairs(definition, task)).sum(axis=1)
        for task in definition.tasks
    }
    table = pl.DataFrame({"query_id": definition.queries, **counts})
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomic(path) as part:
        part.write_text(table.write_csv(), encoding="utf-8")  # Polars takes no path that is not UTF-8


@app.command()
@exit_codes
def make(
    videos: Annotated[Path, typer.Option(help="A folder of clips.")],
    out: Annotated[Path, typer.Option(help="Where the benchmark's folder is made.")],
    name: Annotated[str, typer.Option(help="Name of the benchmark; its ids begin with it.")] = "clips",
    copies: Annotated[int, typer.Option(min=1, help="Edited copies per clip.")] = 4,
    edits: Annotated[
        Literal["usual", "hard", "parts"],
        typer.Option(
            help="`hard`: each copy is altered by several strong edits. `parts`: a copy shows 3, 5, 10 or 30 s of the clip in "
            "longer footage of another."
        ),
    ] = "usual",
    seed: int = 0,
    as_json: JsonOption = False,
) -> None:
    """A labelled copy-detection benchmark: each clip is a query, edited copies of it are what is to be found, and when."""
    from hapvr.corpus.clips_benchmark import make_clips_benchmark

    with progress_bar("copies") as progress:
        made = make_clips_benchmark(
            videos, out, name=name, copies_per_clip=copies, edits=edits, seed=seed, progress=progress
        )
    result = {
        "folder": str(made.folder),
        "queries": made.num_queries,
        "database": made.num_database,
        "segments": made.num_segments,
        "unusable": {str(file.path): file.reason for file in made.unusable},
    }
    show(result, as_json=as_json, text="\n".join(f"{key}: {value}" for key, value in result.items()))
