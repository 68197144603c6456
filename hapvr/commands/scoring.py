"""`hapvr score`, and where models come from."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from hapvr.commands.progress_bars import progress_bar
from hapvr.commands.terminal import default_collection, open_project, show
from hapvr.errors import DataError
from hapvr.files import file_problem
from hapvr.scorer import DEFAULT_PRECISION

if TYPE_CHECKING:
    from hapvr.scorer.calibration import Calibration
    from hapvr.scorer.pairs import PairScore
    from hapvr.scorer.scorer import VideoScorer

CHAMPION = "models:/hapvr@champion"
MIN_PRIOR = 1e-12
TrackingOption = Annotated[
    str,
    Option(
        "--tracking-uri",
        "--data",
        envvar="MLFLOW_TRACKING_URI",
        show_default="that of HAPVR_CONFIG, or of ~/.local/share/hapvr",
        help="Where models:/ names are looked up: an MLflow server or database, or that of a "
        "data root or a configuration.",
    ),
]


def registry_address(tracking_uri: str) -> str:
    """The address, or that of the project, else the registry of HAPVR_CONFIG or of the default
    collection. Raises ConfigError."""
    if "://" in tracking_uri or tracking_uri.startswith("databricks"):
        return tracking_uri
    config = tracking_uri or os.environ.get("HAPVR_CONFIG")
    if config:
        return open_project(Path(config)).tracking_uri
    return f"sqlite:///{default_collection()}/mlflow/mlflow.db"


def score(
    query: Annotated[
        str, Argument(help="A video file, an http(s) URL, a folder, or a .txt list of these.")
    ],
    references: Annotated[list[str], Argument(help="One or more of the same kinds.")],
    model: Annotated[
        str | None,
        Option(
            help="A models:/ name, or a bundle folder. Default: the champion of your registry; "
            "without one, the packaged network for copies."
        ),
    ] = None,
    tracking_uri: TrackingOption = "",
    segments: Annotated[
        bool, Option("--segments", help="Also say which parts match, with their times.")
    ] = False,
    precision: Annotated[
        float,
        Option(
            min=0.5, max=0.99, help="Share of true matches wanted among the pairs called a match."
        ),
    ] = DEFAULT_PRECISION,
    prior: Annotated[
        float | None,
        Option(
            min=MIN_PRIOR,
            max=1 - MIN_PRIOR,
            help="Share of matches among your pairs. Default: the calibration's.",
        ),
    ] = None,
) -> None:
    """Does a video show the same footage as others? Verdict, similarity in [-1, 1] and probability
    of a match per pair.

    Every query is compared with every reference. A video that cannot be read is a row with an
    error.
    """
    queries = expand([query])
    others = expand(references)
    from hapvr.scorer.access import ANY_HOST, Access

    scorer, model, untrained = open_scorer(model, tracking_uri)
    with progress_bar("pairs") as progress:
        rows = scorer.score_pairs(
            [(first, second) for first in queries for second in others],
            segments=segments,
            access=Access(hosts=frozenset({ANY_HOST})),  # a person types the addresses
            progress=progress,
        )

    calibration = scorer.calibration
    pairs = [_pair(row, calibration, precision, prior) for row in rows]
    result = {
        "model": model,
        "untrained": untrained,
        "warning": scorer.warning,
        "precision": precision,
        "prior": prior if prior or calibration is None else calibration.prior,
        "pairs": pairs,
        "thresholds": [] if calibration is None else list(map(asdict, calibration.thresholds)),
    }
    lines = [
        f"model    {model}{', untrained' if untrained else ''}",
        f"verdicts {_verdicts_text(calibration, precision, prior)}",
        *_warning_lines(rows),
    ]
    for pair in pairs:
        lines += _lines(pair)
    show(result, text=lines, failed=any(row.similarity is None for row in rows))


def open_scorer(model: str | None, tracking_uri: str) -> tuple[VideoScorer, str, bool]:
    """A scorer, what answers call its model, and whether nothing in it was trained. model: None for
    the champion of the registry, or the packaged network where there is no registry."""
    from hapvr.scorer.bundle import is_untrained, load_bundle
    from hapvr.scorer.trial import try_bundle

    if model is None and not has_registry(tracking_uri):
        from hapvr.scorer.copies import NAME, open_copy_scorer

        return open_copy_scorer(), NAME, True

    model = model or CHAMPION
    folder = model_folder(model, tracking_uri)
    if model.startswith("models:/"):
        from hapvr.registry.client import pinned_uri

        model = pinned_uri(model, registry_address(tracking_uri))
    else:
        try_bundle(folder)

    return load_bundle(folder, device="auto"), model, is_untrained(folder)


def has_registry(tracking_uri: str) -> bool:
    """Whether somebody named a registry, or there is one in the default collection."""
    if tracking_uri or os.environ.get("HAPVR_CONFIG"):
        return True
    return (default_collection() / "mlflow" / "mlflow.db").exists()


def _warning_lines(rows: Iterable[PairScore]) -> list[str]:
    """Each warning once."""
    warnings = dict.fromkeys(row.warning for row in rows if row.warning)
    return [f"warning  {warning}" for warning in warnings]


def _verdicts_text(calibration: Calibration | None, precision: float, prior: float | None) -> str:
    """What verdicts hold for."""
    if calibration is None:
        return "none: this model has no calibration, so it cannot say how sure it is"
    share = prior or calibration.prior
    text = f"at precision {precision:g}, where {100 * share:.3g} % of the pairs match"
    if prior is not None:
        return text
    least = calibration.threshold(precision).similarity
    if least is None:
        return f"{text}: no similarity reaches it"
    return (
        f"{text}: a match is a similarity from {least:+.4f} on, or from a lower one where aligned "
        "frames follow one course"
    )


def expand(names: list[str]) -> list[str]:
    """Files and URLs as they are, the videos and pictures below a folder, and the lines of a .txt
    list.

    Raises DataError naming the first file that does not exist, and a folder or list without videos:
    people see a typing mistake before a model is loaded.
    """
    expanded: list[str] = []
    for name in names:
        try:
            inside = _videos_of(name)
        except (OSError, ValueError) as error:
            raise DataError(
                f"video: {name!r:.200} cannot be used ({file_problem(error)}); correct it"
            ) from None

        if not inside:
            raise DataError(
                f"video: {name} holds no video; expected files such as .mp4, or a .txt list of them"
            )

        expanded += inside

    return expanded


def _videos_of(name: str) -> list[str]:
    """The videos of a folder or list, else the name itself. Raises OSError for a missing file."""
    from hapvr.video.sources import query_files, read_lines

    if "://" in name:
        return [name]
    path = Path(name)
    if os.path.isdir(name):  # "" is not a folder, while Path("") is the current one
        return [str(file) for file in query_files(path)]
    os.stat(name)
    if path.suffix.lower() == ".txt":
        return read_lines(path, folder=Path())
    return [name]


def _pair(
    row: PairScore, calibration: Calibration | None, precision: float, prior: float | None
) -> dict[str, Any]:
    """A row as plain values, with the verdict, a match where both files have the same bytes; no
    segments where there is no match."""
    pair = asdict(row) | {"verdict": None, "same_file": False}
    if row.similarity is None:
        return pair
    if calibration is not None:
        pair["probability"] = calibration.probability(
            row.similarity, prior=prior, one_course=row.one_course
        )
        pair["verdict"] = calibration.verdict(
            row.similarity, precision=precision, prior=prior, one_course=row.one_course
        )

    if _have_same_bytes(row.query, row.reference):
        pair |= {"verdict": "match", "probability": 1.0, "same_file": True}
    if pair["verdict"] == "no match" and row.segments is not None:
        pair["segments"] = ()
    return pair


def _have_same_bytes(query: str, reference: str) -> bool:
    """Whether both are files of the same content; one that is gone by now is not."""
    if "://" in query or "://" in reference:
        return False
    with suppress(OSError):
        return filecmp.cmp(query, reference, shallow=False)
    return False


def _lines(pair: dict[str, Any]) -> list[str]:
    from hapvr.scorer.calibration import chance
    from hapvr.scorer.segments import clock

    if pair["similarity"] is None:
        return [f"failed   {pair['query']} - {pair['reference']}: {pair['error']}"]
    line = f"{pair['verdict'] or '-':<8} {pair['query']} - {pair['reference']}: similarity "
    line += f"{pair['similarity']:+.4f}"
    if pair["probability"] is not None:
        line += f"  probability {chance(pair['probability'])}"
    if pair["same_file"]:
        line += "  the same file"
    if pair["verdict"] == "no match" or pair["segments"] is None:
        return [line]
    if not pair["segments"]:
        return [line, "         no matching segments"]

    lines = [line]
    for part in pair["segments"]:
        query = f"{clock(part['query_start_s'])}-{clock(part['query_end_s'])}"
        reference = f"{clock(part['reference_start_s'])}-{clock(part['reference_end_s'])}"
        lines.append(
            f"         query {query} = reference {reference}  "
            f"(frame similarity {part['score']:.2f})"
        )

    return lines


def model_folder(model: str, tracking_uri: str) -> Path:
    """The local folder of a registered model, or the place itself."""
    from hapvr.registry.client import registered_bundle

    if not model.startswith("models:/"):
        return Path(model)
    return registered_bundle(model, registry_address(tracking_uri))
