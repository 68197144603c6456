"""How well a model finds where copies lie: its segments of a benchmark's pairs against the true times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.definitions.catalog import load_definition
from hapvr.benchmark.segments import PREDICTION_SCHEMA, SegmentMetrics, evaluate_segments
from hapvr.errors import DataError
from hapvr.features.extract import choose_device
from hapvr.files import write_atomic
from hapvr.model.checkpoint import load_network
from hapvr.model.family import VideoNetwork
from hapvr.scorer.aligners import ALIGNERS, DEFAULT_ALIGNER, AlignerName
from hapvr.scorer.calibration import Calibration, frame_threshold
from hapvr.scorer.frame_matrix import relative_frame_matrix
from hapvr.scorer.segments import Clock, timed_segments
from hapvr.stages.benchmark_features import BenchmarkFeatures
from hapvr.stages.evaluation import stored_similarities
from hapvr.stages.project import Project
from hapvr.stages.sources import benchmark_folder
from hapvr.stages.training import TrainingRun
from hapvr.stages.validation import benchmark_shards
from hapvr.storage.features import FeatureStore
from hapvr.tables import read_frame
from hapvr.video.settings import SamplingConfig

RETRIEVED = 20
"""References of each query that get segments, as many as a search shows by default."""

LENGTHS_S = {"below 4 s": 4.0, "4 to 7.5 s": 7.5, "7.5 to 20 s": 20.0, "20 s and more": float("inf")}
"""Classes of pairs by their longest true stretch of the query: around 3, 5, 10 and 30 s."""


@dataclass(frozen=True, eq=False)
class SegmentScores:
    """metrics: of all pairs. by_length, by_edit: of the pairs with true segments alone, so that precision does not fall with
    false pairs. predicted: PREDICTION_SCHEMA. threshold: relative frame similarity from which on frames counted as the same.
    """

    aligner: AlignerName
    threshold: float
    metrics: SegmentMetrics
    by_length: Mapping[str, SegmentMetrics]
    by_edit: Mapping[str, SegmentMetrics]
    predicted: pl.DataFrame

    def to_json(self) -> dict[str, Any]:
        """Plain values, without the segments themselves."""
        groups = {"by_length": self.by_length, "by_edit": self.by_edit}
        return {
            "aligner": self.aligner,
            "threshold": self.threshold,
            "metrics": self.metrics.to_json(),
            **{name: {key: one.to_json() for key, one in group.items()} for name, group in groups.items()},
        }


def score_segments(
    network: VideoNetwork,
    definition: BenchmarkDefinition,
    features: BenchmarkFeatures,
    similarities: pl.DataFrame | Path,
    *,
    threshold: float,
    fps: float,
    aligner: AlignerName = DEFAULT_ALIGNER,
    device: torch.device | str = "cpu",
    retrieved: int = RETRIEVED,
) -> SegmentScores:
    """Find segments of all pairs with true ones and of each query's best references, and compare them with the truth.

    similarities: of the pairs, as `score_benchmark` writes them. fps: sampled frames per second. A true segment of a video
    without features is missed. Pairs that are labelled but share no time, such as footage by another camera, are left out.
    Raises DataError for a benchmark whose true times are not known.
    """
    true = true_segments(definition)
    pairs = pairs_to_localise(definition, similarities, retrieved=retrieved)
    find = ALIGNERS[aligner]
    network = network.to(device).eval()

    def embed(regions: torch.Tensor) -> torch.Tensor:
        return network.embed(regions.to(device).float())

    rows: list[tuple[Any, ...]] = []
    with torch.inference_mode():
        queries = {
            video: (embed(regions), Clock(tuple(features.times(video))))
            for video, regions in features.read(sorted(set(pairs["query_id"])), side=network.needs_side)
        }
        of_reference = dict(pairs.group_by("reference_id").agg("query_id").iter_rows())
        for reference, regions in features.read(sorted(of_reference), side=network.needs_side):
            other, clock = embed(regions), Clock(tuple(features.times(reference)))
            for query in sorted(set(of_reference[reference]) & queries.keys()):
                own, own_clock = queries[query]
                found = find(relative_frame_matrix(network, own, other), threshold=threshold)
                rows += [
                    (query, reference, *(getattr(one, name) for name in list(PREDICTION_SCHEMA)[2:]))
                    for one in timed_segments(found, own_clock, clock, fps=fps)
                ]
    predicted = pl.DataFrame(rows, schema=PREDICTION_SCHEMA, orient="row").sort(list(PREDICTION_SCHEMA))

    def measured(part: pl.DataFrame) -> SegmentMetrics:
        return evaluate_segments(part, predicted.join(part, on=["query_id", "reference_id"], how="semi"), fps=fps)

    return SegmentScores(
        aligner=aligner,
        threshold=threshold,
        metrics=evaluate_segments(true, predicted, fps=fps),
        by_length=_groups(_with_length(true), "length", measured),
        by_edit=_groups(_with_edit(true, definition), "edit", measured),
        predicted=predicted,
    )


def segments_of_benchmarks(
    project: Project, run: TrainingRun, calibration: Calibration | None
) -> dict[str, SegmentScores]:
    """Benchmark -> how well the run's model finds segments there, with the calibrated frame similarity.

    Of the benchmarks that the run was evaluated on, those that know true times, but for the one that it was calibrated on.
    Raises DataError if a benchmark has no stored similarities.
    """
    calibrated_on = None if calibration is None else calibration.source.get("benchmark")
    network, _ = load_network(run.network_folder)
    found = {}
    for name in project.config.evaluation.benchmarks:
        definition = load_definition(str(benchmark_folder(project, name) or name))
        if name != calibrated_on and definition.segments is not None and not definition.segments.is_empty():
            store = FeatureStore(project.root, benchmark_shards(project, name))
            found[name] = score_segments(
                network,
                definition,
                BenchmarkFeatures(store, definition),
                stored_similarities(run, definition.name),
                threshold=frame_threshold(calibration),
                fps=sampled_fps(store.settings),
                device=choose_device(project.config.device),
            )
    return found


def segment_metrics(scores: Mapping[str, SegmentScores]) -> dict[str, float]:
    """What a tracker keeps: `<benchmark>/segments/<metric>`, without what could not be measured."""
    return {
        f"{name}/segments/{metric}": value
        for name, one in scores.items()
        for metric, value in one.metrics.to_json().items()
        if value is not None
    }


def sampled_fps(settings: Mapping[str, Any]) -> float:
    """Sampled frames per second, of features with these settings; imported ones, which do not say, have the default."""
    return SamplingConfig.model_validate(settings.get("sampling", {})).fps


def segments_markdown(scores: SegmentScores) -> str:
    """A table: all pairs, then pairs with true segments by length and by edit."""
    lines = [
        f"Segments by `{scores.aligner}`, frame similarity above {scores.threshold:.3f}; errors in sampled frames.",
        "",
        "| pairs | true segments | found | P | R | F1 | micro-AP | begin | end | within a frame |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = {"all": scores.metrics, **scores.by_length, **scores.by_edit}
    for name, one in rows.items():
        rates = [one.found_rate, one.precision, one.recall, one.f1, one.micro_ap]
        cells = [
            *(_cell(rate, 100) for rate in rates),
            *(_cell(error, 1) for error in (one.begin_error, one.end_error)),
            _cell(one.within_a_frame, 100),
        ]
        lines.append(f"| {name} | {one.num_true} | {' | '.join(cells)} |")
    lines.append("")
    lines.append(
        f"{scores.metrics.num_false_pairs} pairs without true segments have predicted ones; "
        f"{scores.metrics.num_missed_pairs} pairs with true ones have none."
    )
    return "\n".join(lines)


def write_matches(predicted: pl.DataFrame, path: Path) -> None:
    """Segments as CSV with the columns of VSC2022's `matches.csv`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomic(path) as part:
        predicted.rename({name: vsc_name(name) for name in predicted.columns}).write_csv(part)


def vsc_name(column: str) -> str:
    """VSC2022's name of a column of PREDICTION_SCHEMA."""
    return column.removesuffix("_s").replace("reference", "ref")


def _cell(value: float | None, factor: float) -> str:
    return "-" if value is None else f"{factor * value:.{1 if factor == 100 else 2}f}"


def true_segments(definition: BenchmarkDefinition) -> pl.DataFrame:
    """SEGMENT_SCHEMA. Raises DataError for a benchmark whose true times are not known."""
    if definition.segments is None or definition.segments.is_empty():
        raise DataError(
            f"benchmark {definition.name}: the true times of its copies are not known, so that segments cannot be measured; "
            "`hapvr benchmarks make` writes them, also into a folder that it made before"
        )
    return definition.segments


def pairs_to_localise(
    definition: BenchmarkDefinition, similarities: pl.DataFrame | Path, *, retrieved: int
) -> pl.DataFrame:
    """query_id, reference_id of the pairs with true segments, and of each query's `retrieved` best unlabelled references."""
    pair = ["query_id", "reference_id"]
    true = true_segments(definition).select(pair).unique()
    scores = similarities if isinstance(similarities, pl.DataFrame) else read_frame(similarities)
    others = (
        scores.filter(pl.col("query_id") != pl.col("reference_id"))
        .sort("similarity", descending=True)
        .group_by("query_id", maintain_order=True)
        .head(retrieved)
        .join(definition.labels, on=pair, how="anti")
    )
    return pl.concat([true, others.select(pair)]).unique().sort(pair)


def _with_length(true: pl.DataFrame) -> pl.DataFrame:
    length = (pl.col("query_end_s") - pl.col("query_start_s")).max().over("query_id", "reference_id")
    limits = list(LENGTHS_S.values())[:-1]
    return true.with_columns(
        length.cut(limits, labels=list(LENGTHS_S), left_closed=True).cast(pl.String).alias("length")
    )


def _with_edit(true: pl.DataFrame, definition: BenchmarkDefinition) -> pl.DataFrame:
    if definition.videos is None:
        return true.clear().with_columns(pl.lit("").alias("edit"))
    edits = definition.videos.select(pl.col("video_id").alias("reference_id"), "edit")
    return true.join(edits, on="reference_id", how="left", maintain_order="left")


def _groups(
    true: pl.DataFrame, column: str, measured: Callable[[pl.DataFrame], SegmentMetrics]
) -> dict[str, SegmentMetrics]:
    return {
        str(key): measured(part) for (key,), part in sorted(true.group_by(column), key=lambda group: str(group[0][0]))
    }
