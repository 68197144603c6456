"""`hapvr evaluate`."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hapvr.commands.scoring import DEFAULT_TRACKING, TrackingOption, model_folder
from hapvr.commands.terminal import JsonOption, data_root, exit_codes, show

if TYPE_CHECKING:
    from hapvr.benchmark.definition import BenchmarkDefinition
    from hapvr.benchmark.result import EvaluationResult
    from hapvr.benchmark.scoring import ScoringSettings
    from hapvr.config import NormalizationConfig
    from hapvr.scorer.aligners import AlignerName
    from hapvr.scorer.similarity_model import SimilarityModel
    from hapvr.stages.benchmark_features import BenchmarkFeatures
    from hapvr.stages.segment_scores import SegmentScores

CANDIDATES = 100
RAW, NORMALIZED = "raw", "normalized"


@dataclass(frozen=True)
class _Scored:
    """What similarities were made from. fps: sampled frames per second."""

    model: SimilarityModel
    reader: BenchmarkFeatures
    fps: float


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
    first_stage: Annotated[
        str | None,
        typer.Option(help="A model that ranks all videos first; --model then scores its --candidates alone."),
    ] = None,
    candidates: Annotated[
        int | None, typer.Option(min=1, help=f"Videos per query that --first-stage hands on; {CANDIDATES} unless told.")
    ] = None,
    codes: Annotated[
        bool, typer.Option("--codes", help="--first-stage compares binary codes of its video vectors.")
    ] = False,
    tracking_uri: TrackingOption = DEFAULT_TRACKING,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Keep the similarities of --features here. A stopped call with the same --out goes on, but for one with "
            "--first-stage, which begins anew."
        ),
    ] = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        typer.Option(help="Of features and comparator in scoring. auto: the faster one here."),
    ] = "float32",
    symmetric: Annotated[bool, typer.Option("--symmetric", help="Mean of the scores of both directions.")] = False,
    benchmark_files: Annotated[
        Path | None, typer.Option(help="Read the benchmark from this folder of its authors' files.")
    ] = None,
    policy: Annotated[
        Literal["official", "strict", "frozen"], typer.Option(help="What missing videos count as.")
    ] = "strict",
    available: Annotated[
        Path | None,
        typer.Option(
            help="For `frozen`: the videos that count, as Parquet or CSV with a column video_id, or as the folder "
            "availability/SOURCE of a data root."
        ),
    ] = None,
    bootstrap: Annotated[int, typer.Option(min=0, help="Samples of a 95 % interval over queries; 0 for none.")] = 0,
    normalize: Annotated[
        str | None,
        typer.Option(
            metavar="BACKGROUND",
            help="Also give the metrics of normalised scores. BACKGROUND is a Parquet file with the similarities of the "
            "queries to unrelated videos; with --features it is the source of those videos, e.g. own.",
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--normalize-top-k", min=1, help="Background similarities that make a query's level.")
    ] = None,
    weight: Annotated[
        float | None, typer.Option("--normalize-weight", min=0, help="How much of the level is taken off.")
    ] = None,
    segments: Annotated[
        bool,
        typer.Option(
            "--segments", help="Also measure when copies are found, on a benchmark that knows their true times."
        ),
    ] = False,
    aligner: Annotated[
        Literal["tn", "hough"] | None,
        typer.Option(help="How --segments finds them: by a temporal network, as searches do, or by Hough voting."),
    ] = None,
    frame_threshold: Annotated[
        float | None,
        typer.Option(
            min=-1, max=0.999, help="Frame similarity that counts as the same; default: as the model is calibrated."
        ),
    ] = None,
    matches: Annotated[
        Path | None, typer.Option(help="Keep the segments of --segments here, as CSV with VSC2022's columns.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Metrics of a benchmark, from a file of similarities or from stored features and a model."""
    from hapvr.benchmark.definitions.catalog import load_definition
    from hapvr.benchmark.normalization import normalize_similarities
    from hapvr.benchmark.protocol import evaluate as evaluate_benchmark
    from hapvr.benchmark.scoring import ScoringSettings
    from hapvr.errors import ArgumentError
    from hapvr.stages.segment_scores import segments_markdown, true_segments, write_matches

    from_features = similarities is None and features is not None and model is not None
    if not from_features and (similarities is None or features is not None or model is not None or out is not None):
        raise ArgumentError("wanted --similarities FILE, or both --features DIR and --model MODEL [--out FILE]")
    if normalize is None and (top_k is not None or weight is not None):
        raise ArgumentError("--normalize-top-k and --normalize-weight need --normalize BACKGROUND")
    if segments and not from_features:
        raise ArgumentError(
            "--segments needs --features DIR and --model MODEL: segments are found in frames' similarities"
        )
    if not segments and (matches is not None or frame_threshold is not None or aligner is not None):
        raise ArgumentError("--aligner, --frame-threshold and --matches need --segments")
    if first_stage is None and (candidates is not None or codes):
        raise ArgumentError("--candidates and --codes need --first-stage MODEL")
    if first_stage is not None and (not from_features or normalize is not None or symmetric or dtype != "float32"):
        raise ArgumentError(
            "--first-stage needs --features and --model, and goes without --normalize, --symmetric and --dtype"
        )
    first = None if first_stage is None else _FirstStage(first_stage, candidates or CANDIDATES, codes)
    definition = load_definition(benchmark, published_files=benchmark_files)
    ids = _video_ids(available, definition) if available is not None else None
    found_segments = None
    with tempfile.TemporaryDirectory(prefix="hapvr-scores-") as folder:
        files = {RAW: similarities or out or Path(folder) / "similarities.parquet"}
        if normalize is not None:
            files[NORMALIZED] = Path(folder) / "normalized.parquet"
        if from_features:
            config = _normalization(top_k, weight, source=normalize)
            settings = ScoringSettings(dtype=dtype, symmetric=symmetric)
            if segments:
                true_segments(definition)  # refuses a benchmark without them before the long work
            scored = _score(definition, str(features), str(model), tracking_uri, files, settings, config, first)
            found = frozenset(scored.reader.available())
            if segments:
                found_segments = _segments(definition, scored, files[RAW], aligner, frame_threshold)
            ids = found if ids is None and policy != "frozen" else ids
        elif normalize is not None:
            config = _normalization(top_k, weight)
            normalize_similarities(
                files[RAW], Path(normalize), files[NORMALIZED], top_k=config.top_k, weight=config.weight
            )
        results = {
            name: evaluate_benchmark(definition, file, policy=policy, available=ids, bootstrap_samples=bootstrap)
            for name, file in files.items()
        }
    result = results[RAW].to_json()
    if NORMALIZED in results:
        result[NORMALIZED] = results[NORMALIZED].to_json()
    text = _text(definition, results)
    if found_segments is not None:
        result["segments"] = found_segments.to_json()
        text = f"{text}\n\n{segments_markdown(found_segments)}"
        if matches is not None:
            write_matches(found_segments.predicted, matches)
    show(result, as_json=as_json, text=text)


def _normalization(top_k: int | None, weight: float | None, *, source: str | None = None) -> NormalizationConfig:
    """The options as a configuration. Raises ArgumentError for a value that it does not take."""
    from pydantic import ValidationError

    from hapvr.config import NormalizationConfig
    from hapvr.errors import ArgumentError

    given = {"source": source, "top_k": top_k, "weight": weight}
    try:
        return NormalizationConfig.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problem = error.errors()[0]
        raise ArgumentError(
            f"--normalize: {problem['loc'][0]} is {problem['input']!r}: {problem['msg']}; with --features wanted is the "
            "name of a source, as in features/SOURCE-00000"
        ) from error


@dataclass(frozen=True)
class _FirstStage:
    """What ranks all videos before the model scores the best of them."""

    model: str
    candidates: int
    codes: bool


def _score(
    definition: BenchmarkDefinition,
    features: str,
    model: str,
    tracking_uri: str,
    files: dict[str, Path],
    settings: ScoringSettings,
    normalization: NormalizationConfig,
    first: _FirstStage | None,
) -> _Scored:
    """Write the similarities of stored features, raw and where wanted normalised."""
    from hapvr.benchmark.scoring import score_benchmark
    from hapvr.benchmark.two_stages import score_in_two_stages
    from hapvr.features.extract import choose_device
    from hapvr.scorer.similarity_model import load_similarity_model
    from hapvr.stages.benchmark_features import BenchmarkFeatures, shards_with_features
    from hapvr.stages.normalization import normalized_similarities
    from hapvr.stages.segment_scores import sampled_fps
    from hapvr.storage.features import FeatureStore

    chosen = load_similarity_model(model_folder(model, tracking_uri))
    root = data_root(features, None, option="--features")
    store = FeatureStore(root, shards_with_features(root, definition))
    chosen.require_features(store.settings)
    reader = BenchmarkFeatures(store, definition)
    files[RAW].parent.mkdir(parents=True, exist_ok=True)
    device = choose_device("auto")
    if first is None:
        score_benchmark(chosen.network, definition, reader, files[RAW], device=device, settings=settings)
    else:
        coarse = load_similarity_model(model_folder(first.model, tracking_uri))
        coarse.require_features(store.settings)
        score_in_two_stages(
            coarse.network,
            chosen.network,
            definition,
            reader,
            files[RAW],
            candidates=first.candidates,
            codes=first.codes,
            device=device,
        )
    if NORMALIZED in files:
        normalized_similarities(
            chosen.network,
            definition,
            reader,
            root,
            files[RAW],
            files[NORMALIZED],
            config=normalization,
            device=device,
            settings=settings,
        )
    return _Scored(chosen, reader, fps=sampled_fps(store.settings))


def _segments(
    definition: BenchmarkDefinition,
    scored: _Scored,
    similarities: Path,
    aligner: AlignerName | None,
    threshold: float | None,
) -> SegmentScores:
    from hapvr.features.extract import choose_device
    from hapvr.scorer.aligners import DEFAULT_ALIGNER
    from hapvr.stages.segment_scores import score_segments

    return score_segments(
        scored.model.network,
        definition,
        scored.reader,
        similarities,
        threshold=scored.model.frame_threshold if threshold is None else threshold,
        fps=scored.fps,
        aligner=aligner or DEFAULT_ALIGNER,
        device=choose_device("auto"),
    )


def _text(definition: BenchmarkDefinition, results: dict[str, EvaluationResult]) -> str:
    """The papers' table with their rows, the tasks it lacks, intervals, and how much of the benchmark was scored."""
    from hapvr.benchmark.report import PUBLISHED, metrics_markdown, published_markdown

    raw = results[RAW]
    rows = {f"{definition.name} ({raw.policy})": raw.metrics}
    if NORMALIZED in results:
        rows[f"{definition.name} ({raw.policy}), normalised scores"] = results[NORMALIZED].metrics
    parts = [published_markdown(definition.name, rows)]
    shown = PUBLISHED[definition.name][0] if definition.name in PUBLISHED else tuple(raw.metrics)
    others = [task for task in raw.metrics if task not in shown]
    if others:
        parts.append(metrics_markdown(rows, tasks=others))
    for name, result in results.items():
        parts += [
            f"{task.task} ({name}), 95 % interval over queries: {100 * task.interval[0]:.2f} to {100 * task.interval[1]:.2f}"
            for task in result.tasks
            if task.interval is not None
        ]
    counts: dict[str, Any] = raw.to_json()["availability"]  # type: ignore[assignment]
    parts.append("\n".join(f"{name}: {value}" for name, value in counts.items()))
    return "\n".join(parts)


def _video_ids(path: Path, definition: BenchmarkDefinition) -> frozenset[str]:
    """The benchmark's own ids; rows whose status, if there is one, is not ok are left out."""
    import polars as pl

    from hapvr.errors import DataError
    from hapvr.stages.benchmark_features import stored_ids
    from hapvr.storage.manifest import available_videos
    from hapvr.tables import TABLE_ERRORS, read_frame, read_user_table

    try:
        if path.is_dir():
            files = sorted(path.glob("*.parquet"))
            if not files:
                raise FileNotFoundError("it holds no .parquet file")
            table = pl.concat([read_frame(file) for file in files])
        else:
            table = read_user_table(path)
        return frozenset(stored_ids(definition, available_videos(table)))
    except (*TABLE_ERRORS, pl.exceptions.PolarsError) as error:
        raise DataError(f"--available {path}: {error}; wanted Parquet or CSV with a column video_id") from error
