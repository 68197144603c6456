"""`hapvr score` and `hapvr evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hapvr.commands.terminal import FAILED, JsonOption, exit_codes, show
from hapvr.config import Policy

if TYPE_CHECKING:
    from hapvr.scorer.scorer import VideoScorer

DEFAULT_MODEL = "models:/hapvr@champion"
DEFAULT_TRACKING = "sqlite:///data/demo/mlflow/mlflow.db"
ModelOption = Annotated[
    str, typer.Option("--model", help="models:/NAME@ALIAS, models:/NAME/VERSION, or a bundle folder.")
]
TrackingOption = Annotated[
    str, typer.Option("--tracking-uri", envvar="MLFLOW_TRACKING_URI", help="Where models:/ names are looked up.")
]


@exit_codes
def score(
    query: Annotated[Path, typer.Argument(help="A video file.")],
    references: Annotated[list[Path], typer.Argument(help="One or more video files.")],
    model: ModelOption = DEFAULT_MODEL,
    tracking_uri: TrackingOption = DEFAULT_TRACKING,
    as_json: JsonOption = False,
) -> None:
    """Similarity in [-1, 1] of a video and others; higher is closer. A file that cannot be read is a row with an error."""
    scorer = load_scorer(model, tracking_uri)
    rows = scorer.score_pairs([(query, reference) for reference in references])
    lines = [
        f"{row.similarity:+.4f}  {row.reference}"
        if row.similarity is not None
        else f"failed   {row.reference}: {row.error}"
        for row in rows
    ]
    show({"model": model, "pairs": [row.__dict__ for row in rows]}, as_json=as_json, text="\n".join(lines))
    if any(row.similarity is None for row in rows):
        raise typer.Exit(FAILED)


@exit_codes
def evaluate(
    benchmark: Annotated[str, typer.Option(help="A shipped benchmark (`hapvr benchmarks list`) or the folder of one.")],
    similarities: Annotated[Path, typer.Option(help="Parquet: query_id, reference_id, similarity.")],
    policy: Annotated[Policy, typer.Option(help="For missing videos.")] = "strict",
    available: Annotated[
        Path | None, typer.Option(help="For `frozen`: Parquet or CSV with a column video_id of the videos that count.")
    ] = None,
    bootstrap: Annotated[int, typer.Option(help="Samples of a 95 % interval over queries; 0 for none.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Metrics of a benchmark from a file of similarities."""
    from hapvr.benchmark.definitions.catalog import load_definition
    from hapvr.benchmark.protocol import evaluate as evaluate_benchmark
    from hapvr.benchmark.report import metrics_markdown

    definition = load_definition(benchmark)
    ids = _video_ids(available) if available is not None else None
    result = evaluate_benchmark(
        definition,
        similarities,
        policy=policy,
        available=ids,
        bootstrap_samples=bootstrap,
    )
    counts: dict[str, Any] = result.to_json()["availability"]  # type: ignore[assignment]
    text = metrics_markdown({f"{definition.name} ({policy})": result.metrics}) + "".join(
        f"{name}: {value}\n" for name, value in counts.items()
    )
    show(result.to_json(), as_json=as_json, text=text.rstrip())


def load_scorer(model: str, tracking_uri: str) -> VideoScorer:
    """The scorer of a registered model or of a bundle folder."""
    from hapvr.features.extract import choose_device
    from hapvr.scorer.bundle import load_bundle
    from hapvr.tracking.registry import download_bundle

    folder = download_bundle(model, tracking_uri) if model.startswith("models:/") else Path(model)
    return load_bundle(folder, device=str(choose_device("auto")))


def _video_ids(path: Path) -> frozenset[str]:
    import polars as pl

    from hapvr.errors import DataError

    try:
        table = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, infer_schema=False)
        return frozenset(table["video_id"].to_list())
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"--available {path}: {error}; wanted Parquet or CSV with a column video_id") from error
