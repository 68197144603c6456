"""`hapvr evaluate` and `hapvr benchmarks list`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from hapvr.commands.scoring import TrackingOption, model_folder
from hapvr.commands.terminal import Verbs, require_outside, show
from hapvr.errors import ArgumentError

if TYPE_CHECKING:
    import polars as pl

    from hapvr.benchmark.definition import BenchmarkDefinition
    from hapvr.benchmark.protocol import EvaluationResult


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
    top_k: Annotated[
        int,
        Option(
            min=1,
            max=1_000_000,
            help="With --normalize: neighbours in the source whose mean similarity is taken off.",
        ),
    ] = 1,
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

    _check_inputs(similarities, features, model, out, normalize)
    definition = load_definition(benchmark)
    title = f"{definition.name} ({policy})"
    scored: dict[str, Path | pl.DataFrame] = {}
    available = None
    with tempfile.TemporaryDirectory(prefix="hapvr-scores-") as folder:
        if similarities is not None:
            scored[title] = similarities
        else:
            network = model_folder(str(model), tracking_uri)
            place = out or Path(folder) / "similarities.parquet"
            normalized, available = _from_features(
                definition, str(features), network, place, background=normalize, top_k=top_k
            )
            scored[title] = place
            if normalized is not None:
                scored[f"{title}, normalised by the {top_k} nearest"] = normalized

        results = {
            name: evaluate_benchmark(
                definition, table, policy=policy, available=available, bootstrap_samples=bootstrap
            )
            for name, table in scored.items()
        }

    _show_results(definition, results, top_k)


def _check_inputs(
    similarities: Path | None,
    features: str | None,
    model: str | None,
    out: Path | None,
    normalize: str | None,
) -> None:
    """Raise ArgumentError unless there are similarities alone, or features and a model."""
    if similarities is None:
        is_right = features is not None and model is not None
    else:
        is_right = not any((features, model, out, normalize))

    if not is_right:
        both = "both --features DIR and --model MODEL, with which --out and --normalize go"
        raise ArgumentError(f"expected --similarities FILE alone, or {both}")
    if out is not None and out.suffix.lower() != ".parquet":
        raise ArgumentError(f"--out is {str(out)!r:.200}; expected a name that ends in .parquet")
    require_outside(out)


def _show_results(
    definition: BenchmarkDefinition, results: dict[str, EvaluationResult], top_k: int
) -> None:
    """Metrics, intervals and counts of the similarities, and metrics of normalised ones; a star
    marks numbers of other videos than the benchmark's or the paper's."""
    from hapvr.benchmark.report import (
        events_markdown,
        pool_note,
        published_markdown,
        published_metrics,
    )

    first, *normalized = results.values()
    pool = pool_note(definition, first.availability)
    star = " *" if pool else ""
    metrics = {f"{name}{star}": result.metrics for name, result in results.items()}
    lines = published_markdown(definition.name, metrics).splitlines()
    if pool:
        lines += [f"{name}: {pool}" for name in metrics]
    lines += events_markdown(results).splitlines()
    for name, result in results.items():
        for task in result.tasks:
            if task.interval is not None:
                low, high = task.interval
                lines.append(
                    f"{task.task}, {name}: 95 % interval over queries {100 * low:.2f} to "
                    f"{100 * high:.2f}"
                )

    lines += [f"{name}: {value}" for name, value in first.availability.items()]

    content = first.to_json()
    content["published"] = published_metrics(definition.name).to_dicts()
    note = definition.provenance.get("note")
    if note:
        content["note"] = note

    if normalized:
        content["normalized"] = normalized[0].to_json() | {"top_k": top_k}
    show(content, text=lines)


def _from_features(
    definition: BenchmarkDefinition,
    features: str,
    model: Path,
    out: Path,
    *,
    background: str | None,
    top_k: int,
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
    root = DataRoot(features)
    device = choose_device("auto")
    reader = BenchmarkFeatures(root, shards_with_features(root, definition), definition)
    if description is not None:
        description.require_features(model, reader.settings)
    score_benchmark(network, definition, reader, out, device=device)
    available = frozenset(reader.available())
    if background is None:
        return None, available

    others, videos = background_features(root, definition, background)
    with tempfile.TemporaryDirectory(prefix="hapvr-background-") as folder:
        levels = Path(folder) / "background.parquet"
        score_benchmark(network, definition, others, levels, references=videos, device=device)
        normalized = normalize_similarities(read_frame(out), read_frame(levels), top_k=top_k)
        return normalized, available


app = Verbs(
    name="benchmarks",
    no_args_is_help=True,
    help="Benchmark definitions that ship with the package, and those made from authors' files.",
)


@app.command("import")
def import_(
    kind: Annotated[
        Literal["vcdb", "svd"], Argument(help="The data set whose files the folder holds.")
    ],
    folder: Annotated[Path, Argument(help="The authors' files, see docs/paper_map.md.")],
    out: Annotated[Path, Option(help="The folder of the definition, for `hapvr evaluate`.")],
    distractors: Annotated[
        Path | None, Option(help="VCDB: a list of ids, or a folder of videos, of its background.")
    ] = None,
) -> None:
    """Make a benchmark of files that do not ship: VCDB, or SVD with its unlabelled videos."""
    from hapvr.benchmark.published_files import import_svd, import_vcdb

    require_outside(out)
    if kind == "svd":
        if distractors is not None:
            raise ArgumentError("--distractors goes with vcdb; svd reads its unlabeled-data-id")
        definition = import_svd(folder, out)
    else:
        definition = import_vcdb(folder, out, distractors=distractors)

    result = {
        "name": definition.name,
        "folder": str(out),
        "queries": len(definition.queries),
        "database": len(definition.database),
        "labels": len(definition.labels),
        "note": definition.provenance.get("note"),
    }
    lines = [f"{name:<9} {value}" for name, value in result.items() if value]
    show(result, text=lines)


@app.command("list")
def list_() -> None:
    """The definitions that ship with the package."""
    from hapvr.benchmark.shipped import SHIPPED

    lines = [f"{name:<18} {description}" for name, description in SHIPPED.items()]
    show({"benchmarks": SHIPPED}, text=lines)
