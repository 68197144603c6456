"""How every step makes a shard, which it describes in a `ShardRecipe`, of a generator that makes
the entries of single videos.

1. The shard is locked, so that two processes at once make it once.
2. A shard that was made from the same settings and inputs is left alone.
3. Rows of an earlier run that the step's `reuse` accepts are copied from the old data file; only
   the others are made.
4. The data file is written next to the old one and replaces it in one step, which also removes the
   old index.
5. The index is written last: a shard is finished exactly when its index is there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from hapvr.data.shards import STATUS_OK, Columns, Shard, VideoRows, index_row
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, differences, environment

IndexRow = dict[str, Any]
"""A row of an index, see `hapvr.data.shards.index_row`."""
VideoEntry = tuple[IndexRow, Columns | None]
"""What a step made of one video: its row in the index, and its values of each data column in the
recipe's order, None if it has none."""


@dataclass(frozen=True, kw_only=True)
class ShardRecipe:
    """What a shard is made of and how it lies on disk. settings, inputs: what determines the
    content, see `Provenance`. columns: of the data file; empty for a shard that has an index alone.
    index_columns: the step's own columns of the index."""

    shard: Shard
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    columns: Sequence[pa.Field] = ()
    index_columns: Sequence[pa.Field] = ()

    @property
    def provenance(self) -> Provenance:
        return Provenance(self.shard.stage, self.settings, self.inputs, environment())


@dataclass(frozen=True)
class StageResult:
    """The state of a shard after its step ran. done: False if the shard was finished before and was
    left alone."""

    shard: Shard
    done: bool
    num_ok: int
    num_failed: int
    num_rows: int

    @staticmethod
    def of(shard: Shard, *, done: bool) -> StageResult:
        rows = shard.rows()
        num_ok = sum(row["status"] == STATUS_OK for row in rows)
        return StageResult(
            shard, done, num_ok, len(rows) - num_ok, sum(row["num_rows"] for row in rows)
        )


def build_shard(
    recipe: ShardRecipe,
    *,
    video_ids: Sequence[str],
    make: Callable[[Sequence[str]], Generator[VideoEntry, None, None]],
    lost: Sequence[IndexRow] = (),
    reuse: Callable[[IndexRow, Provenance], bool] | None = None,
    retry: bool = False,
    progress: Progress = no_progress,
) -> StageResult:
    """Make one shard, unless it is finished. video_ids: the videos of the shard, in the order of
    its data file. make: is called with those that have to be made, and yields the entry of each, in
    their order. lost: index rows of videos that an earlier step lost; they come last. reuse:
    whether a row of an earlier run with the same settings still holds; it gets the row and that
    run's provenance. retry: make the videos that `reuse` refuses although the shard is finished.
    Raises DataError where the shard cannot be written."""
    shard, provenance = recipe.shard, recipe.provenance
    with shard.lock():
        finished = shard.is_finished(provenance)
        if finished and not retry:
            return StageResult.of(shard, done=False)
        kept: dict[str, IndexRow] = {}
        found = shard.find() if reuse else None
        if reuse and found and not differences(provenance.settings, found.provenance.settings):
            kept = {row["video_id"]: row for row in found.rows() if reuse(row, found.provenance)}
            # Damaged rows must not be copied under a new digest.
            if (
                kept
                and found.data_sha256
                and found.data_sha256 != shard.root.sha256(shard.data_name)
            ):
                warnings.warn(f"{shard.data_name} is damaged; all its rows are made again")
                kept = {}
        pending = [video_id for video_id in video_ids if video_id not in kept]
        if finished and not pending:
            return StageResult.of(shard, done=False)
        earlier = VideoRows(shard) if kept and recipe.columns else None

        def entry(video_id: str) -> VideoEntry:
            if video_id not in kept:
                return next(made)
            if earlier is None or kept[video_id]["status"] != STATUS_OK:
                return kept[video_id], None
            return kept[video_id], earlier.rows(video_id).columns

        with closing(make(pending)) as made:
            _write([recipe], ([entry(one)] for one in video_ids), len(video_ids), lost, progress)
        return StageResult.of(shard, done=True)


def build_shards(
    recipes: Sequence[ShardRecipe],
    *,
    num_videos: int,
    make: Callable[[Sequence[ShardRecipe]], Generator[Sequence[VideoEntry], None, None]],
    lost: Sequence[IndexRow] = (),
    progress: Progress = no_progress,
) -> list[StageResult]:
    """Make those of several shards that are unfinished, in one pass over their videos. make: is
    called with the recipes of the unfinished shards, and yields for each video an entry per recipe.
    lost: as for `build_shard`, the same rows for every shard. Returns the results in the order of
    `recipes`."""
    with ExitStack() as locks:
        for shard in sorted(
            (recipe.shard for recipe in recipes), key=lambda shard: shard.index_name
        ):
            locks.enter_context(shard.lock())
        unfinished = [
            recipe for recipe in recipes if not recipe.shard.is_finished(recipe.provenance)
        ]
        if unfinished:
            with closing(make(unfinished)) as made:
                _write(unfinished, made, num_videos, lost, progress)
        return [StageResult.of(recipe.shard, done=recipe in unfinished) for recipe in recipes]


def failed_rows(rows: Iterable[IndexRow], **columns: Any) -> list[IndexRow]:
    """The videos that an earlier step lost, as rows of this step, so that a loss stays visible to
    the end of the chain. rows: of that step's index. columns: values of the step's own columns in
    these rows."""
    return [
        index_row(
            row["video_id"],
            0,
            status=row["status"],
            reason=row["reason"],
            message=row["message"],
            **columns,
        )
        for row in rows
        if row["status"] != STATUS_OK
    ]


def _write(
    recipes: Sequence[ShardRecipe],
    entries: Iterable[Sequence[VideoEntry]],
    num_videos: int,
    lost: Sequence[IndexRow],
    progress: Progress,
) -> None:
    """Write data files, then indexes. entries: of each video one per recipe."""
    rows: list[list[IndexRow]] = [[] for _ in recipes]
    with ExitStack() as stack:
        writers = [
            stack.enter_context(recipe.shard.write_data(recipe.columns)) if recipe.columns else None
            for recipe in recipes
        ]
        for of_video in entries:
            for (row, data), of_shard, write in zip(of_video, rows, writers, strict=True):
                if write is not None and data is not None:
                    write(data)
                of_shard.append(row)
            progress(len(rows[0]), num_videos)
    for recipe, of_shard in zip(recipes, rows, strict=True):
        recipe.shard.write_index(
            [*of_shard, *lost], provenance=recipe.provenance, fields=recipe.index_columns
        )
