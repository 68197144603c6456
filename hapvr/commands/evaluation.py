"""`hapvr evaluate`, and `hapvr benchmarks list`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from hapvr.commands.scoring import TrackingOption, model_folder
from hapvr.commands.terminal import Verbs, show
from hapvr.errors import ArgumentError

if TYPE_CHECKING:
    import polars as pl

    from hapvr.benchmark.definition import BenchmarkDefinition


def evaluate(
    benchmark: Annotated[str, Option(help="A known benchmark (`hapvr benchmarks list`) or the folder of one.")],
    similarities: Annotated[Path | None, Option(help="Parquet: query_id, reference_id, similarity.")] = None,
    features: Annotated[str | None, Option(help="A data root; scored with --model.")] = None,
    model: Annotated[str | None, Option(help="A models:/ name, a bundle or network, or a published .pth.")] = None,
    tracking_uri: TrackingOption = "",
    out: Annotated[Path | None, Option(help="Keep the similarities of --features here.")] = None,
    normalize: Annotated[
        str | None,
        Option(metavar="SOURCE", help="Also normalise by the similarity to this source, which shows no query."),
    ] = None,
    policy: Annotated[Literal["official", "strict"], Option(help="What missing videos count as.")] = "strict",
    bootstrap: Annotated[int, Option(min=0, help="Samples of a 95 % interval over queries; 0 for none.")] = 0,
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
    definition = load_definition(benchmark)
    title, available, normalized = f"{definition.name} ({policy})", None, None
    with tempfile.TemporaryDirectory(prefix="hapvr-scores-") as folder:
        place = similarities or out or Path(folder) / "similarities.parquet"
        if similarities is None:
            network = model_folder(str(model), tracking_uri)
            normalized, available = _from_features(definition, str(features), network, place, background=normalize)
        scored: dict[str, Path | pl.DataFrame | None] = {title: place, f"{title}, normalised scores": normalized}
        results = {
            name: evaluate_benchmark(definition, one, policy=policy, available=available, bootstrap_samples=bootstrap)
            for name, one in scored.items()
            if one is not None
        }
    first, *others = results.values()
    lines = [published_markdown(definition.name, {name: one.metrics for name, one in results.items()})]
    lines += [
        f"{task.task}, {name}: 95 % interval over queries {100 * task.interval[0]:.2f} to {100 * task.interval[1]:.2f}"
        for name, result in results.items()
        for task in result.tasks
        if task.interval is not None
    ]
    lines += [f"{name}: {value}" for name, value in first.availability.items()]
    content = first.to_json() | {"published": published_metrics(definition.name).to_dicts()}
    if others:
        content["normalized"] = others[0].to_json()
    show(content, text="\n".join(lines))


def _from_features(
    definition: BenchmarkDefinition, features: str, model: Path, out: Path, *, background: str | None
) -> tuple[pl.DataFrame | None, frozenset[str]]:
    """Write similarities; returns the normalised ones, with a background, and ids of the videos with features."""
    from hapvr.benchmark.scoring import normalize_similarities, score_benchmark
    from hapvr.data.filesystem import DataRoot
    from hapvr.networks.extract import choose_device
    from hapvr.scorer.bundle import load_similarity_model
    from hapvr.steps.benchmark_features import BenchmarkFeatures, background_features, shards_with_features
    from hapvr.tables import read_frame

    chosen = load_similarity_model(model)
    root, device = DataRoot(features), choose_device("auto")
    reader, normalized = BenchmarkFeatures(root, shards_with_features(root, definition), definition), None
    chosen.require_features(reader.settings)
    score_benchmark(chosen.network, definition, reader, out, device=device)
    if background is not None:
        others, videos = background_features(root, definition, background)
        with tempfile.TemporaryDirectory(prefix="hapvr-background-") as folder:
            levels = Path(folder) / "background.parquet"
            score_benchmark(chosen.network, definition, others, levels, references=videos, device=device)
            normalized = normalize_similarities(read_frame(out), read_frame(levels))
    return normalized, frozenset(reader.available())


app = Verbs(name="benchmarks", no_args_is_help=True, help="Benchmark definitions that ship with the package.")


@app.command("list")
def list_() -> None:
    """The definitions that ship with the package."""
    from hapvr.benchmark.definition import SHIPPED

    text = "\n".join(f"{name:<18} {description}" for name, description in SHIPPED.items())
    show({"benchmarks": SHIPPED}, text=text)
