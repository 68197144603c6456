"""`hapvr evaluate`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hapvr.commands.scoring import DEFAULT_TRACKING, TrackingOption
from hapvr.commands.terminal import JsonOption, data_root, exit_codes, show
from hapvr.config import Policy

if TYPE_CHECKING:
    from hapvr.benchmark.definition import BenchmarkDefinition
    from hapvr.benchmark.result import EvaluationResult
    from hapvr.benchmark.scoring import ScoringSettings


@exit_codes
def evaluate(
    benchmark: Annotated[str, typer.Option(help="A known benchmark (`hapvr benchmarks list`) or the folder of one.")],
    similarities: Annotated[
        Path | None, typer.Option(help="Parquet: query_id, reference_id, similarity. Or give --features and --model.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="A data root, or its folder `features`; scored with --model.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="models:/NAME@ALIAS, a bundle or network folder, or a published .pth.")
    ] = None,
    tracking_uri: TrackingOption = DEFAULT_TRACKING,
    out: Annotated[
        Path | None,
        typer.Option(help="Keep the similarities of --features here; a stopped call with the same --out goes on."),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Of features and comparator in scoring.")
    ] = "float32",
    symmetric: Annotated[bool, typer.Option("--symmetric", help="Mean of the scores of both directions.")] = False,
    benchmark_files: Annotated[
        Path | None, typer.Option(help="Read the benchmark from this folder of its authors' files.")
    ] = None,
    policy: Annotated[Policy, typer.Option(help="For missing videos.")] = "strict",
    available: Annotated[
        Path | None,
        typer.Option(
            help="For `frozen`: the videos that count, as Parquet or CSV with a column video_id, or as the folder "
            "availability/SOURCE of a data root."
        ),
    ] = None,
    bootstrap: Annotated[int, typer.Option(min=0, help="Samples of a 95 % interval over queries; 0 for none.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Metrics of a benchmark, from a file of similarities or from stored features and a model."""
    from hapvr.benchmark.definitions.catalog import load_definition
    from hapvr.benchmark.protocol import evaluate as evaluate_benchmark
    from hapvr.benchmark.scoring import ScoringSettings
    from hapvr.errors import ArgumentError

    from_features = similarities is None and features is not None and model is not None
    if not from_features and (similarities is None or features is not None or model is not None or out is not None):
        raise ArgumentError("wanted --similarities FILE, or both --features DIR and --model MODEL [--out FILE]")
    definition = load_definition(benchmark, published_files=benchmark_files)
    ids = _video_ids(available, definition) if available is not None else None
    with tempfile.TemporaryDirectory(prefix="hapvr-scores-") as folder:
        if from_features:
            settings = ScoringSettings(dtype=dtype, symmetric=symmetric)
            scores = out or Path(folder) / "similarities.parquet"
            found = _score(definition, str(features), str(model), tracking_uri, scores, settings)
            ids = found if ids is None and policy != "frozen" else ids
        else:
            scores = Path(str(similarities))
        result = evaluate_benchmark(definition, scores, policy=policy, available=ids, bootstrap_samples=bootstrap)
    show(result.to_json(), as_json=as_json, text=_text(definition, result))


def _score(
    definition: BenchmarkDefinition,
    features: str,
    model: str,
    tracking_uri: str,
    out: Path,
    settings: ScoringSettings,
) -> frozenset[str]:
    """Write the similarities of stored features; returns the benchmark's videos that have some."""
    from hapvr.benchmark.scoring import score_benchmark
    from hapvr.features.extract import choose_device
    from hapvr.scorer.similarity_model import load_similarity_model
    from hapvr.stages.benchmark_features import BenchmarkFeatures, shards_with_features
    from hapvr.storage.features import FeatureStore
    from hapvr.tracking.registry import download_bundle

    place = download_bundle(model, tracking_uri) if model.startswith("models:/") else Path(model)
    chosen = load_similarity_model(place)
    root = data_root(features, None, option="--features")
    store = FeatureStore(root, shards_with_features(root, definition))
    chosen.require_features(store.settings)
    reader = BenchmarkFeatures(store, definition)
    out.parent.mkdir(parents=True, exist_ok=True)
    device = choose_device("auto")
    score_benchmark(chosen.network, definition, reader, out, device=device, settings=settings)
    return frozenset(reader.available())


def _text(definition: BenchmarkDefinition, result: EvaluationResult) -> str:
    """The papers' table with their rows, the tasks it lacks, and how much of the benchmark was scored."""
    from hapvr.benchmark.report import PUBLISHED, metrics_markdown, published_markdown

    row = {f"{definition.name} ({result.policy})": result.metrics}
    parts = [published_markdown(definition.name, row)]
    shown = PUBLISHED[definition.name][0] if definition.name in PUBLISHED else tuple(result.metrics)
    others = [task for task in result.metrics if task not in shown]
    if others:
        parts.append(metrics_markdown(row, tasks=others))
    counts: dict[str, Any] = result.to_json()["availability"]  # type: ignore[assignment]
    parts.append("\n".join(f"{name}: {value}" for name, value in counts.items()))
    return "\n".join(parts)


def _video_ids(path: Path, definition: BenchmarkDefinition) -> frozenset[str]:
    """The benchmark's own ids; rows whose status, if there is one, is not ok are left out."""
    import polars as pl

    from hapvr.errors import DataError
    from hapvr.stages.benchmark_features import stored_ids
    from hapvr.storage.availability import available_videos

    try:
        if path.is_dir():
            table = pl.read_parquet(path / "*.parquet")
        else:
            table = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, infer_schema=False)
        return frozenset(stored_ids(definition, available_videos(table)))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"--available {path}: {error}; wanted Parquet or CSV with a column video_id") from error
