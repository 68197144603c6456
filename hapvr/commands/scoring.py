"""`hapvr score`, `hapvr evaluate` and `hapvr benchmarks list`, and where models come from."""

from __future__ import annotations

import filecmp
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from hapvr.commands.terminal import (
    Verbs,
    default_collection,
    open_project,
    progress_bar,
    require_outside,
    show,
)
from hapvr.errors import ArgumentError, DataError
from hapvr.scorer import DEFAULT_PRECISION

if TYPE_CHECKING:
    import polars as pl

    from hapvr.benchmark.definition import BenchmarkDefinition
    from hapvr.scorer.calibration import Calibration
    from hapvr.scorer.scorer import PairScore, VideoScorer

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
    if config := tracking_uri or os.environ.get("HAPVR_CONFIG"):
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
        # a person who types an address may fetch it
        rows = scorer.score_pairs(
            [(first, second) for first in queries for second in others],
            segments=segments,
            access=Access(hosts=frozenset({ANY_HOST})),
            progress=progress,
        )
    calibration = scorer.calibration
    pairs = [_pair(row, calibration, precision, prior) for row in rows]
    share, thresholds = prior, list[Any]()
    verdicts = "none: this model has no calibration, so it cannot say how sure it is"
    if calibration is not None:
        share, thresholds = (
            prior or calibration.prior,
            [asdict(row) for row in calibration.thresholds],
        )
        verdicts = f"at precision {precision:g}, where {100 * share:.3g} % of the pairs match"
        if prior is None:
            least = calibration.threshold(precision).similarity
            from_ = (
                "no similarity reaches it"
                if least is None
                else f"a match is a similarity from {least:+.4f} on"
            )
            verdicts += f": {from_}"
    result = {
        "model": model,
        "untrained": untrained,
        "warning": scorer.warning,
        "precision": precision,
    }
    result |= {"prior": share, "pairs": pairs, "thresholds": thresholds}
    lines = [f"model    {model}{', untrained' * untrained}", f"verdicts {verdicts}"]
    lines += [f"warning  {said}" for said in dict.fromkeys(row.warning for row in rows) if said]
    lines += [line for pair in pairs for line in _lines(pair)]
    show(result, text=lines, failed=any(row.similarity is None for row in rows))


def open_scorer(model: str | None, tracking_uri: str) -> tuple[VideoScorer, str, bool]:
    """A scorer, what answers call its model, and whether nothing in it was trained. model: None for
    the champion of the registry, or the packaged network where there is no registry."""
    from hapvr.scorer.bundle import is_untrained, load_bundle, try_bundle

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


def expand(names: list[str]) -> list[str]:
    """Files and URLs as they are, the videos and pictures below a folder, and the lines of a .txt
    list.

    Raises DataError naming the first file that does not exist, and a folder or list without videos:
    people see a typing mistake before a model is loaded.
    """
    from hapvr.video.sources import query_files, read_lines

    found: list[str] = []
    for name in names:
        path, inside = Path(name), [name]
        try:
            if "://" not in name and os.path.isdir(
                name
            ):  # "" is no folder, while Path("") is the current one
                inside = [str(one) for one in query_files(path)]
            elif "://" not in name and os.stat(name) and path.suffix.lower() == ".txt":
                inside = read_lines(path, folder=Path())
        except (OSError, ValueError) as error:
            raise DataError(f"video: {name!r:.200} cannot be used ({error}); correct it") from None
        if not inside:
            raise DataError(
                f"video: {name} holds no video; wanted files such as .mp4, or a .txt list of them"
            )
        found += inside
    return found


def _pair(
    row: PairScore, calibration: Calibration | None, precision: float, prior: float | None
) -> dict[str, Any]:
    """A row as plain values, with the verdict, a match where both files have the same bytes; no
    segments where there is no match."""
    pair = asdict(row) | {"verdict": None, "same_file": False}
    if row.similarity is None:
        return pair
    if calibration is not None:
        pair["probability"] = calibration.probability(row.similarity, prior=prior)
        pair["verdict"] = calibration.verdict(row.similarity, precision=precision, prior=prior)
    with suppress(OSError):  # a file may be gone by now
        if "://" not in row.query + row.reference and filecmp.cmp(
            row.query, row.reference, shallow=False
        ):
            pair |= {"verdict": "match", "probability": 1.0, "same_file": True}
    if pair["verdict"] == "no match" and row.segments is not None:
        pair["segments"] = ()
    return pair


def _lines(pair: dict[str, Any]) -> list[str]:
    from hapvr.scorer.segments import clock

    if pair["similarity"] is None:
        return [f"failed   {pair['query']} - {pair['reference']}: {pair['error']}"]
    verdict = f"{pair['verdict'] or '-':<8}"
    chance = (
        "" if pair["probability"] is None else f"  probability {100 * pair['probability']:5.1f} %"
    )
    same = "  the same file" * pair["same_file"]
    lines = [
        f"{verdict} {pair['query']} - {pair['reference']}: similarity "
        f"{pair['similarity']:+.4f}{chance}{same}"
    ]
    if pair["verdict"] != "no match" and pair["segments"] is not None:
        lines += [
            f"         query {clock(part['query_start_s'])}-{clock(part['query_end_s'])} = "
            "reference "
            f"{clock(part['reference_start_s'])}-{clock(part['reference_end_s'])}  (frame "
            f"similarity {part['score']:.2f})"
            for part in pair["segments"]
        ] or ["         no matching segments"]
    return lines


def model_folder(model: str, tracking_uri: str) -> Path:
    """The local folder of a registered model, or the place itself."""
    from hapvr.registry.client import registered_bundle

    return (
        registered_bundle(model, registry_address(tracking_uri))
        if model.startswith("models:/")
        else Path(model)
    )


def evaluate(
    benchmark: Annotated[
        str, Option(help="A known benchmark (`hapvr benchmarks list`) or the folder of one.")
    ],
    similarities: Annotated[
        Path | None, Option(help="Parquet: query_id, reference_id, similarity.")
    ] = None,
    features: Annotated[str | None, Option(help="A data root; scored with --model.")] = None,
    model: Annotated[
        str | None, Option(help="A models:/ name, a bundle or network, or a published .pth.")
    ] = None,
    tracking_uri: TrackingOption = "",
    out: Annotated[Path | None, Option(help="Keep the similarities of --features here.")] = None,
    normalize: Annotated[
        str | None,
        Option(
            metavar="SOURCE",
            help="Also normalise by the similarity to this source, which shows no query.",
        ),
    ] = None,
    policy: Annotated[
        Literal["official", "strict"], Option(help="What missing videos count as.")
    ] = "strict",
    bootstrap: Annotated[
        int, Option(min=0, max=100_000, help="Samples of a 95 % interval; 0 for none.")
    ] = 0,
) -> None:
    """Metrics of a benchmark, from a file of similarities or from stored features and a model."""
    from hapvr.benchmark.definition import load_definition
    from hapvr.benchmark.protocol import evaluate as evaluate_benchmark
    from hapvr.benchmark.report import published_markdown, published_metrics

    scoring = (features, model, out, normalize)
    if any(scoring) if similarities is not None else features is None or model is None:
        both = "both --features DIR and --model MODEL, with which --out and --normalize go"
        raise ArgumentError(f"wanted --similarities FILE alone, or {both}")
    if out is not None and out.suffix.lower() != ".parquet":
        raise ArgumentError(f"--out is {str(out)!r:.200}; wanted a name that ends in .parquet")
    require_outside(out)
    definition = load_definition(benchmark)
    title, available, normalized = f"{definition.name} ({policy})", None, None
    with tempfile.TemporaryDirectory(prefix="hapvr-scores-") as folder:
        place = similarities or out or Path(folder) / "similarities.parquet"
        if similarities is None:
            network = model_folder(str(model), tracking_uri)
            normalized, available = _from_features(
                definition, str(features), network, place, background=normalize
            )
        scored: dict[str, Path | pl.DataFrame | None] = {
            title: place,
            f"{title}, normalised scores": normalized,
        }
        results = {
            name: evaluate_benchmark(
                definition, one, policy=policy, available=available, bootstrap_samples=bootstrap
            )
            for name, one in scored.items()
            if one is not None
        }
    first, *others = results.values()
    lines = [
        published_markdown(definition.name, {name: one.metrics for name, one in results.items()})
    ]
    lines += [
        f"{task.task}, {name}: 95 % interval over queries {100 * task.interval[0]:.2f} to "
        f"{100 * task.interval[1]:.2f}"
        for name, result in results.items()
        for task in result.tasks
        if task.interval is not None
    ]
    lines += [f"{name}: {value}" for name, value in first.availability.items()]
    content = first.to_json() | {"published": published_metrics(definition.name).to_dicts()}
    if others:
        content["normalized"] = others[0].to_json()
    show(content, text=lines)


def _from_features(
    definition: BenchmarkDefinition,
    features: str,
    model: Path,
    out: Path,
    *,
    background: str | None,
) -> tuple[pl.DataFrame | None, frozenset[str]]:
    """Write similarities; returns the normalised ones, with a background, and ids of the videos
    with features."""
    from hapvr.benchmark.scoring import normalize_similarities, score_benchmark
    from hapvr.data.filesystem import DataRoot
    from hapvr.networks.torch_runtime import choose_device
    from hapvr.scorer.bundle import load_similarity_model
    from hapvr.steps.benchmark_features import (
        BenchmarkFeatures,
        background_features,
        shards_with_features,
    )
    from hapvr.tables import read_frame

    network, description = load_similarity_model(model)
    root, device = DataRoot(features), choose_device("auto")
    reader, normalized = (
        BenchmarkFeatures(root, shards_with_features(root, definition), definition),
        None,
    )
    if description is not None:
        description.require_features(model, reader.settings)
    score_benchmark(network, definition, reader, out, device=device)
    if background is not None:
        others, videos = background_features(root, definition, background)
        with tempfile.TemporaryDirectory(prefix="hapvr-background-") as folder:
            levels = Path(folder) / "background.parquet"
            score_benchmark(network, definition, others, levels, references=videos, device=device)
            normalized = normalize_similarities(read_frame(out), read_frame(levels))
    return normalized, frozenset(reader.available())


app = Verbs(
    name="benchmarks",
    no_args_is_help=True,
    help="Benchmark definitions that ship with the package.",
)


@app.command("list")
def list_() -> None:
    """The definitions that ship with the package."""
    from hapvr.benchmark.definition import SHIPPED

    show(
        {"benchmarks": SHIPPED},
        text="\n".join(f"{name:<18} {description}" for name, description in SHIPPED.items()),
    )
