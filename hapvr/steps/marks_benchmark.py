"""What people marked, as a benchmark, which the calibration and the gate use once it suffices."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from hapvr.benchmark.definition import (
    LABEL_SCHEMA,
    MARKS,
    MATCH,
    NO_MATCH,
    BenchmarkDefinition,
    tasks_of,
)
from hapvr.data.features import STAGE as FEATURES_STAGE
from hapvr.data.features import FeatureStore
from hapvr.data.manifest import GENERATED, VIDEOS_STAGE, read_manifest
from hapvr.data.shards import STATUS_OK
from hapvr.errors import DataError
from hapvr.search.marks import read_marks
from hapvr.steps.benchmark_features import BenchmarkFeatures
from hapvr.steps.project import Project


@dataclass(frozen=True)
class MarkedPairs:
    """Marks on videos of the collection.

    pairs: two video ids, the smaller one first, and `match` or `not_a_match`. shards: that hold their features. skipped:
    marks of which a video is gone, has no features, or is left out.
    """

    pairs: tuple[tuple[str, str, str], ...]
    shards: tuple[str, ...]
    skipped: int

    @property
    def num_matches(self) -> int:
        return sum(label == MATCH for _, _, label in self.pairs)

    @property
    def num_others(self) -> int:
        return len(self.pairs) - self.num_matches

    def suffice(self, project: Project) -> bool:
        """Whether calibration and gate use them: `evaluation.min_marks` of both kinds."""
        return min(self.num_matches, self.num_others) >= project.config.evaluation.min_marks

    def open(self, project: Project) -> tuple[BenchmarkDefinition, BenchmarkFeatures]:
        """The benchmark, and the stored features of its videos. Raises DataError where no pair is marked as a match."""
        if not self.num_matches:
            raise DataError(
                f"benchmark {MARKS}: no marked pair of the collection is a match ({len(self.pairs)} pairs, {self.skipped} marks "
                "of videos that are gone); mark some with `hapvr pairs mark`"
            )
        labels = pl.DataFrame(self.pairs, schema=LABEL_SCHEMA, orient="row")
        definition = BenchmarkDefinition(
            name=MARKS,
            kind=MARKS,
            queries=tuple(labels["query_id"].unique().sort()),
            database=tuple(labels["reference_id"].unique().sort()),
            labels=labels,
            tasks=tasks_of(MARKS, labels["label"]),
        )
        return definition, BenchmarkFeatures(FeatureStore(project.root, list(self.shards)), definition)


def marked_pairs(project: Project, *, tests: bool = True) -> MarkedPairs:
    """The marks, by the ids that the marked contents have now; of equal files the first id. tests: also of videos that
    benchmarks for tests are made of."""
    marks = read_marks(project.root).rows()
    places = _places(project, {content for mark in marks for content in (mark.first, mark.second)}, tests=tests)
    pairs, shards = [], set()
    for mark in marks:
        if mark.first in places and mark.second in places:
            (first, one), (second, other) = sorted((places[mark.first], places[mark.second]))
            pairs.append((first, second, MATCH if mark.verdict == "match" else NO_MATCH))
            shards |= {one, other}
    return MarkedPairs(tuple(sorted(pairs)), tuple(sorted(shards)), len(marks) - len(pairs))


def _places(project: Project, contents: set[str], *, tests: bool) -> dict[str, tuple[str, str]]:
    """SHA-256 -> id and shard of a video that has features; of equal files the first id."""
    manifest = read_manifest(project.root)
    chosen = manifest.filter(~pl.col("split").is_in([GENERATED] if tests else [GENERATED, "test"]))
    found: list[tuple[str, tuple[str, str]]] = []
    for key in chosen["shard"].unique() if contents else ():
        videos, features = project.shard(VIDEOS_STAGE, key).find(), project.shard(FEATURES_STAGE, key).find()
        if videos is not None and features is not None:
            usable = features.frame().filter(pl.col("status") == STATUS_OK).select("video_id")
            rows = (
                videos.frame().filter(pl.col("sha256").is_in(sorted(contents))).join(usable, on="video_id", how="semi")
            )
            found += [(sha256, (video_id, key)) for video_id, sha256 in rows.select("video_id", "sha256").iter_rows()]
    return dict(sorted(found, reverse=True))
