"""`hapvr features import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hapvr.commands.terminal import JsonOption, data_root, exit_codes, progress_bar, show

app = typer.Typer(no_args_is_help=True, help="Stored features: bring published ones in.")


@app.callback()
def _group() -> None:
    """Typer makes a group of one verb only where it has a callback."""


@app.command("import")
@exit_codes
def import_(
    file: Annotated[Path, typer.Argument(help="HDF5, a dataset per video id: [T, 9, D] or [T, D].")],
    out: Annotated[str | None, typer.Option(help="The data root that gets features/NAME-00000, ...")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Take the data root of this configuration instead.")
    ] = None,
    name: Annotated[str, typer.Option(help="What the shards are called.")] = "imported",
    benchmark: Annotated[
        str | None, typer.Option(help="Its videos that the file lacks become failed rows: a shipped name or a folder.")
    ] = None,
    fps: Annotated[float, typer.Option(help="Frames per second of the features.")] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Convert published features; videos that cannot be used are rows with a reason, counted here."""
    from hapvr.benchmark.definitions.catalog import load_definition
    from hapvr.steps.features import import_features

    root = data_root(out, config, option="--out")
    wanted = load_definition(benchmark).video_ids if benchmark is not None else ()
    with progress_bar("videos") as progress:
        done = import_features(root, file, name=name, fps=fps, wanted_ids=wanted, progress=progress)
    result: dict[str, Any] = {
        "data_root": root.url,
        "shards": [shard.key for shard in done.shards],
        "new_shards": done.num_new_shards,
        "ok": done.num_ok,
        "failed": done.failures,
        "regions": done.num_regions,
        "dims": done.dims,
        "sha256": done.sha256,
    }
    show(result, as_json=as_json, text="\n".join(f"{key}: {value}" for key, value in result.items()))
