"""How every step makes a shard: from a `ShardRecipe`, which describes it, and a generator that
makes the entries of single videos.

1. The shard is locked, so that two processes at once make it only once. Videos that were forgotten
   during the wait are left out.
2. A shard that was made from the same settings and inputs is left alone.
3. Rows of an earlier run that the step's `reuse` accepts are copied from the old data file; only
   the others are made.
4. The data file is written next to the old one and replaces it in one step, which also removes the
   old index.
5. The index is written last: a shard is finished exactly when its index is there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from hapvr.data.manifest import forgotten_of
from hapvr.data.shards import STATUS_OK, Columns, Shard, index_row
from hapvr.data.video_rows import VideoRows
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance, differences, environment

IndexRow = dict[str, Any]
"""A row of an index; see `hapvr.data.shards.index_row`."""
VideoEntry = tuple[IndexRow, Columns | None]
"""What a step made of one video: its row in the index, and its values for each data column in the
recipe's order; None if it has no data."""


@dataclass(frozen=True, kw_only=True)
class ShardRecipe:
    """What a shard is made from, and how it is stored. `settings` and `inputs` determine its
    content, see `Provenance`."""

    shard: Shard
    settings: Mapping[str, Any]
    inputs: dict[str, str]
    columns: Sequence[pa.Field] = ()
    """of the data file; empty for a shard that has only an index"""
    index_columns: Sequence[pa.Field] = ()
    """the step's own columns of the index"""

    @property
    def provenance(self) -> Provenance:
        return Provenance(self.shard.stage, self.settings, self.inputs, environment())

    def drop_inputs(self, video_ids: Collection[str]) -> None:
        """Remove the inputs of these videos from `inputs`. It stays the same dictionary, since a
        step records there what it has read."""
        for video_id in video_ids:
            self.inputs.pop(video_id, None)


@dataclass(frozen=True)
class StageResult:
    """The state of a shard after its step ran."""

    shard: Shard
    done: bool
    """False if the shard was finished already and was not touched"""
    num_ok: int
    num_failed: int
    num_rows: int

    @staticmethod
    def of(shard: Shard, *, done: bool) -> StageResult:
        rows = shard.rows()
        num_ok = sum(row["status"] == STATUS_OK for row in rows)
        return StageResult(
            shard=shard,
            done=done,
            num_ok=num_ok,
            num_failed=len(rows) - num_ok,
            num_rows=sum(row["num_rows"] for row in rows),
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
    shard = recipe.shard
    with shard.lock():
        video_ids, lost = _without_forgotten(recipe, video_ids, lost)
        finished = shard.is_finished(recipe.provenance)
        if finished and not retry:
            return StageResult.of(shard, done=False)
        kept = {} if reuse is None else _rows_to_keep(recipe, reuse)
        pending = [video_id for video_id in video_ids if video_id not in kept]
        if finished and not pending:
            return StageResult.of(shard, done=False)

        earlier = VideoRows(shard) if kept and recipe.columns else None
        with closing(make(pending)) as new_entries:
            entries = _in_order(video_ids, kept, earlier, new_entries)
            _write([recipe], entries, len(video_ids), lost, progress)

        return StageResult.of(shard, done=True)


def _without_forgotten(
    recipe: ShardRecipe, video_ids: Sequence[str], lost: Sequence[IndexRow]
) -> tuple[Sequence[str], Sequence[IndexRow]]:
    """Videos and lost rows, without those that were forgotten. The recipe loses their inputs."""
    shard = recipe.shard
    asked = {row["video_id"] for row in lost}.union(video_ids)
    forgotten = forgotten_of(shard.root, asked, dict.fromkeys(asked, shard.key))
    recipe.drop_inputs(forgotten)
    return (
        [video_id for video_id in video_ids if video_id not in forgotten],
        [row for row in lost if row["video_id"] not in forgotten],
    )


def _rows_to_keep(
    recipe: ShardRecipe, reuse: Callable[[IndexRow, Provenance], bool]
) -> dict[str, IndexRow]:
    """Index rows of an earlier run with the same settings that still hold, by video id."""
    shard = recipe.shard
    index = shard.find()
    if index is None or differences(recipe.provenance.settings, index.provenance.settings):
        return {}
    kept = {row["video_id"]: row for row in index.rows() if reuse(row, index.provenance)}

    # Damaged rows must not be copied under a new digest.
    if kept and index.data_sha256 and index.data_sha256 != shard.root.sha256(shard.data_name):
        warnings.warn(f"{shard.data_name} is damaged; all its rows are rebuilt")
        return {}

    return kept


def _in_order(
    video_ids: Iterable[str],
    kept: Mapping[str, IndexRow],
    earlier: VideoRows | None,
    new_entries: Iterator[VideoEntry],
) -> Iterator[list[VideoEntry]]:
    """The entry of each video, in a list of its own: copied from the earlier data file, or new."""
    for video_id in video_ids:
        if video_id not in kept:
            yield [next(new_entries)]
            continue

        row = kept[video_id]
        if earlier is None or row["status"] != STATUS_OK:
            yield [(row, None)]
        else:
            yield [(row, earlier.rows(video_id).columns)]


def build_shards(
    recipes: Sequence[ShardRecipe],
    *,
    num_videos: int,
    make: Callable[[Sequence[ShardRecipe]], Generator[Sequence[VideoEntry], None, None]],
    lost: Sequence[IndexRow] = (),
    progress: Progress = no_progress,
) -> list[StageResult]:
    """Make the unfinished ones of several shards, in one pass over their videos. make: is called
    with the recipes of the unfinished shards, and yields for each video an entry per recipe.
    lost: as for `build_shard`, the same rows for every shard. Returns the results in the order of
    `recipes`, which are of one key."""
    with ExitStack() as locks:
        # Always in the same order, so that two processes do not wait for each other.
        shards = [recipe.shard for recipe in recipes]
        for shard in sorted(shards, key=lambda shard: shard.index_name):
            locks.enter_context(shard.lock())

        unfinished = [
            recipe for recipe in recipes if not recipe.shard.is_finished(recipe.provenance)
        ]
        if unfinished:
            _, lost = _without_forgotten(unfinished[0], (), lost)
            with closing(make(unfinished)) as entries:
                _write(unfinished, entries, num_videos, lost, progress)

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
    """Write data files, then indexes. entries: for each video one per recipe."""
    rows: list[list[IndexRow]] = [[] for _ in recipes]
    with ExitStack() as stack:
        writers: list[Callable[[Columns], None] | None] = []
        for recipe in recipes:
            data_file = recipe.shard.write_data(recipe.columns) if recipe.columns else None
            writers.append(None if data_file is None else stack.enter_context(data_file))

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
