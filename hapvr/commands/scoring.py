"""`hapvr score`, and where models come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hapvr.commands.terminal import FAILED, JsonOption, exit_codes, show

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


def load_scorer(model: str, tracking_uri: str) -> VideoScorer:
    """The scorer of a registered model or of a bundle folder."""
    from hapvr.features.extract import choose_device
    from hapvr.scorer.bundle import load_bundle
    from hapvr.tracking.registry import download_bundle

    folder = download_bundle(model, tracking_uri) if model.startswith("models:/") else Path(model)
    return load_bundle(folder, device=str(choose_device("auto")))
