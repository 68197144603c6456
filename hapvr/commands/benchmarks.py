"""`hapvr benchmarks list | show | make`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hapvr.commands.terminal import JsonOption, exit_codes, progress_bar, show

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
    }
    show(result, as_json=as_json, text="\n".join(f"{key}: {value}" for key, value in result.items()))


@app.command()
@exit_codes
def make(
    videos: Annotated[Path, typer.Option(help="A folder of clips.")],
    out: Annotated[Path, typer.Option(help="Where the benchmark's folder is made.")],
    name: Annotated[str, typer.Option(help="Name of the benchmark; its ids begin with it.")] = "clips",
    edits: Annotated[
        Literal["usual", "hard", "parts"],
        typer.Option(
            help="`hard`: each copy is altered by several strong edits. `parts`: a copy shows 3, 5, 10 or 30 s of the clip in "
            "longer footage of another."
        ),
    ] = "usual",
    as_json: JsonOption = False,
) -> None:
    """A labelled copy-detection benchmark: each clip is a query, edited copies of it are what is to be found, and when."""
    from hapvr.demo.clips_benchmark import make_clips_benchmark

    with progress_bar("copies") as progress:
        made, unusable = make_clips_benchmark(videos, out, name=name, edits=edits, progress=progress)
    result = {
        "folder": str(out),
        "queries": len(made.queries),
        "database": len(made.database),
        "segments": 0 if made.segments is None else len(made.segments),
        "unusable": {str(path): reason for path, reason in unusable.items()},
    }
    show(result, as_json=as_json, text="\n".join(f"{key}: {value}" for key, value in result.items()))
