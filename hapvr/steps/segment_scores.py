"""How well a model finds where copies lie: its segments of a benchmark's pairs against the true times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch

from hapvr.benchmark.definition import BenchmarkDefinition
from hapvr.benchmark.segments import SEGMENT_SCHEMA, TIME_COLUMNS, SegmentMetrics, evaluate_segments
from hapvr.errors import DataError
from hapvr.model.family import VideoNetwork
from hapvr.scorer.segments import FrameTimes, align, relative_frame_matrix, timed_segments
from hapvr.steps.benchmark_features import BenchmarkFeatures
from hapvr.tables import markdown_table, read_frame
from hapvr.video.settings import SamplingConfig

RETRIEVED = 20
"""References of each query that get segments, as many as a search shows by default."""


@dataclass(frozen=True, eq=False)
class SegmentScores:
    """metrics: of all pairs. by_edit: of the pairs with true segments alone, so that precision does not fall with false
    pairs. threshold: relative frame similarity from which on frames counted as the same."""

    threshold: float
    metrics: SegmentMetrics
    by_edit: Mapping[str, SegmentMetrics]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def score_segments(
    network: VideoNetwork,
    definition: BenchmarkDefinition,
    features: BenchmarkFeatures,
    similarities: Path,
    *,
    threshold: float,
    device: torch.device | str = "cpu",
) -> SegmentScores:
    """Find segments of all pairs with true ones and of each query's best references, and compare them with the truth.

    similarities: of the pairs, as `score_benchmark` writes them. A true segment of a video without features is missed.
    Pairs that are labelled but share no time, such as footage by another camera, are left out.
    Raises DataError for a benchmark whose true times are not known.
    """
    true = true_segments(definition)
    # Imported features do not say how they were sampled and have the default.
    fps = SamplingConfig.model_validate(features.settings.get("sampling", {})).fps
    predicted = _predicted(
        network.to(device).eval(),
        features,
        _pairs_to_localise(definition, true, read_frame(similarities)),
        threshold=threshold,
        fps=fps,
        device=device,
    )

    by_edit = {}
    if definition.videos is not None:
        pair = ["query_id", "reference_id"]
        edits = definition.videos.select(pl.col("video_id").alias("reference_id"), "edit")
        edited = true.join(edits, on="reference_id", how="left", maintain_order="left")
        by_edit = {
            str(edit): evaluate_segments(part, predicted.join(part, on=pair, how="semi"), fps=fps)
            for (edit,), part in sorted(edited.group_by("edit"), key=lambda group: str(group[0][0]))
        }
    return SegmentScores(threshold, evaluate_segments(true, predicted, fps=fps), by_edit)


def true_segments(definition: BenchmarkDefinition) -> pl.DataFrame:
    """SEGMENT_SCHEMA. Raises DataError for a benchmark whose true times are not known."""
    if definition.segments is None or definition.segments.is_empty():
        raise DataError(
            f"benchmark {definition.name}: the true times of its copies are not known, so segments cannot be measured; "
            "benchmarks of `hapvr benchmarks make` have them"
        )
    return definition.segments


def _pairs_to_localise(definition: BenchmarkDefinition, true: pl.DataFrame, scores: pl.DataFrame) -> pl.DataFrame:
    """query_id, reference_id of the pairs with true segments, and of each query's RETRIEVED best unlabelled references."""
    pair = ["query_id", "reference_id"]
    others = (
        scores.filter(pl.col("query_id") != pl.col("reference_id"))
        .sort("similarity", descending=True)
        .group_by("query_id", maintain_order=True)
        .head(RETRIEVED)
        .join(definition.labels, on=pair, how="anti")
    )
    return pl.concat([true.select(pair), others.select(pair)]).unique().sort(pair)


def _predicted(
    network: VideoNetwork,
    features: BenchmarkFeatures,
    pairs: pl.DataFrame,
    *,
    threshold: float,
    fps: float,
    device: torch.device | str,
) -> pl.DataFrame:
    """Segments of these pairs, SEGMENT_SCHEMA."""

    def read(video_ids: set[str]) -> Any:
        for video, regions in features.read(sorted(video_ids), extras=network.needs_extras):
            yield video, (network.embed(regions.to(device).float()), FrameTimes(tuple(features.times(video))))

    rows: list[tuple[Any, ...]] = []
    with torch.inference_mode():
        queries = dict(read(set(pairs["query_id"])))
        of_reference = dict(pairs.group_by("reference_id").agg("query_id").iter_rows())
        for reference, (other, clock) in read(set(of_reference)):
            for query in sorted(set(of_reference[reference]) & queries.keys()):
                own, own_clock = queries[query]
                found = align(relative_frame_matrix(network, own, other), threshold=threshold)
                rows += [
                    (query, reference, *(getattr(one, name) for name in TIME_COLUMNS))
                    for one in timed_segments(found, own_clock, clock, fps=fps)
                ]
    return pl.DataFrame(rows, schema=SEGMENT_SCHEMA, orient="row").sort(list(SEGMENT_SCHEMA))


def segments_markdown(scores: SegmentScores) -> str:
    """A table: all pairs, then pairs with true segments by edit."""
    rows = []
    for name, one in {"all": scores.metrics, **scores.by_edit}.items():
        rates = [one.found_rate, one.precision, one.recall, one.f1, one.within_a_frame]
        cells = ["-" if rate is None else f"{100 * rate:.1f}" for rate in rates]
        cells[4:4] = ["-" if error is None else f"{error:.2f}" for error in (one.begin_error, one.end_error)]
        rows.append((name, one.num_true, *cells))
    head = ("pairs", "true segments", "found", "P", "R", "F1", "begin", "end", "within a frame")
    return (
        f"Segments at a frame similarity above {scores.threshold:.3f}; errors in sampled frames.\n\n"
        f"{markdown_table(head, rows)}\n\n{scores.metrics.num_false_pairs} pairs without true segments have predicted ones; "
        f"{scores.metrics.num_missed_pairs} pairs with true ones have none."
    )
