"""`hapvr score`, and where models come from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hapvr.commands.terminal import FAILED, JsonOption, exit_codes, show

if TYPE_CHECKING:
    from hapvr.scorer.scorer import PairScore, VideoScorer

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
    query: Annotated[str, typer.Argument(help="A video file, or an http(s) URL.")],
    references: Annotated[list[str], typer.Argument(help="One or more video files or URLs.")],
    model: ModelOption = DEFAULT_MODEL,
    tracking_uri: TrackingOption = DEFAULT_TRACKING,
    segments: Annotated[bool, typer.Option("--segments", help="Also say which parts match, with their times.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Similarity in [-1, 1] of a video and others, and the probability of a match; higher is closer.

    A video that cannot be read is a row with an error.
    """
    from hapvr.scorer.access import ANY_HOST, Access

    scorer = load_scorer(model, tracking_uri)
    pairs = [(query, reference) for reference in references]
    # whoever types an address may fetch it
    rows = scorer.score_pairs(pairs, segments=segments, access=Access(hosts=frozenset({ANY_HOST})))
    calibration = scorer.calibration
    thresholds = [] if calibration is None else [asdict(row) for row in calibration.thresholds]
    result = {"model": model, "pairs": [asdict(row) for row in rows], "thresholds": thresholds}
    show(result, as_json=as_json, text="\n".join(line for row in rows for line in _lines(row)))
    if any(row.similarity is None for row in rows):
        raise typer.Exit(FAILED)


def _lines(row: PairScore) -> list[str]:
    if row.similarity is None:
        return [f"failed   {row.reference}: {row.error}"]
    chance = "" if row.probability is None else f"  {100 * row.probability:5.1f} %"
    lines = [f"{row.similarity:+.4f}{chance}  {row.reference}"]
    lines += [
        f"    {found.query_start_s:.1f}-{found.query_end_s:.1f} s shows what {found.reference_start_s:.1f}-"
        f"{found.reference_end_s:.1f} s does (frame similarity {found.score:.2f})"
        for found in row.segments or ()
    ]
    return lines if row.segments != () else [*lines, "    no matching segments"]


def model_folder(model: str, tracking_uri: str) -> Path:
    """The local folder of a registered model, or the place itself."""
    from hapvr.tracking.store import registered_bundle

    return registered_bundle(model, tracking_uri) if model.startswith("models:/") else Path(model)


def load_scorer(model: str, tracking_uri: str) -> VideoScorer:
    """The scorer of a registered model or of a bundle folder."""
    folder = model_folder(model, tracking_uri)
    from hapvr.features.extract import choose_device
    from hapvr.scorer.bundle import load_bundle

    return load_bundle(folder, device=str(choose_device("auto")))
