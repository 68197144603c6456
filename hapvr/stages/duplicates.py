"""Stages 13 and 14: pairs of videos that share footage, shard by shard, and groups of copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import combinations
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from hapvr.errors import DamagedError, DataError
from hapvr.progress import Progress, no_progress
from hapvr.provenance import Provenance
from hapvr.search.current import current_index
from hapvr.search.duplicates import DuplicatePair, GroupMember, best_of_each, group_copies
from hapvr.search.engine import Found
from hapvr.search.marks import Marks, read_marks
from hapvr.search.match import coverage
from hapvr.stages.project import Project
from hapvr.stages.searcher import Searcher
from hapvr.storage.features import STAGE as FEATURES_STAGE
from hapvr.storage.filesystem import DataRoot, read_schema_metadata

PAIRS_STAGE = "duplicate_pairs"
GROUPS_PLACE = "duplicate_groups/groups.parquet"
LEAST_PROBABILITY = 0.5
"""Pairs below it are not stored, so a threshold above it can be changed without searching again."""

_FINGERPRINT = b"hapvr.fingerprint"


@dataclass(frozen=True)
class ShardPairs:
    """pairs: of one shard's videos with all others. done: False if they were there already."""

    key: str
    pairs: tuple[DuplicatePair, ...]
    done: bool


def make_duplicate_pairs(
    project: Project, searcher: Searcher, key: str, *, progress: Progress = no_progress
) -> ShardPairs:
    """Look for every video of a shard in the whole collection; a shard that is unchanged is left alone.

    A pair of two shards is found by the one that is searched later, so new shards need no other one to be searched again.
    Raises DataError for a shard that is not in the index, and for a model without calibration.
    """
    calibration = searcher.scorer.calibration
    if calibration is None:
        raise DataError(
            "duplicates: the model has no calibration, so it does not say how sure it is; register one that was evaluated "
            "on a validation benchmark"
        )
    wanted = _fingerprint(project, key)
    video_ids = searcher.videos_of(key)
    if not video_ids:
        raise DataError(f"duplicates: the index has no videos of shard {key}; run `hapvr index update` first")
    place = f"{PAIRS_STAGE}/{key}/rows.parquet"
    with project.root.lock(f"{PAIRS_STAGE}/{key}"):
        try:
            found = _stored(project.root, place, wanted)
        except DamagedError:  # as if it were not there
            found = None
        if found is not None:
            return ShardPairs(key, found, done=False)
        pairs: list[DuplicatePair] = []
        for number, video_id in enumerate(video_ids):
            progress(number, len(video_ids))
            for one in searcher.find_copies(video_id, least_probability=LEAST_PROBABILITY):
                pairs.append(_pair(video_id, one, calibration.probability(one.score.similarity), searcher))
        progress(len(video_ids), len(video_ids))
        made = tuple(best_of_each(pairs))
        table = pl.DataFrame([asdict(pair) for pair in made], schema=_SCHEMA).to_arrow()
        with project.root.write(place) as stream:
            pq.write_table(table.replace_schema_metadata({_FINGERPRINT: wanted.encode()}), stream, compression="zstd")
    return ShardPairs(key, made, done=True)


def duplicate_pairs(
    project: Project, searcher: Searcher, *, min_probability: float, rejected: bool = False
) -> list[DuplicatePair]:
    """All stored pairs of videos that the index still has, and files of the same bytes; marks of people come first.

    A pair that is marked as no match is left out, or with `rejected` kept with its mark; one that is marked as a match
    stays, whatever its probability.
    """
    marks = read_marks(project.root)
    stored: list[DuplicatePair] = []
    for key in project.root.list_folders(PAIRS_STAGE):
        place = f"{PAIRS_STAGE}/{key}/rows.parquet"
        stored += _stored(project.root, place, None) or ()
    there = set(searcher.video_ids())
    known = (pair for pair in stored if pair.first in there and pair.second in there)
    marked = _marked(best_of_each([*known, *_equal_files(searcher)]), marks, searcher)
    marked = [pair for pair in marked if rejected or pair.mark != "not_a_match"]
    return [pair for pair in marked if pair.mark == "match" or pair.probability >= min_probability]


def make_duplicate_groups(project: Project, searcher: Searcher, *, min_probability: float) -> list[GroupMember]:
    """Groups of copies over all pairs, written to `duplicate_groups/groups.parquet`. No file is touched."""
    pairs = duplicate_pairs(project, searcher, min_probability=min_probability)
    ids = {video_id for pair in pairs for video_id in (pair.first, pair.second)}
    members = group_copies(pairs, {video_id: searcher.facts.of(video_id) for video_id in ids})
    with project.root.write(GROUPS_PLACE) as stream:
        pq.write_table(group_table(members).to_arrow(), stream, compression="zstd")
    return members


def group_table(members: Iterable[GroupMember]) -> pl.DataFrame:
    """A row per member, with the facts of its file."""
    rows = []
    for member in members:
        row = asdict(member)
        file = row.pop("facts")
        rows.append(row | file | {"path": None if file["path"] is None else str(file["path"])})
    return pl.DataFrame(rows, schema=_GROUP_SCHEMA)


def pair_table(pairs: Iterable[DuplicatePair]) -> pl.DataFrame:
    """A row per pair, with its kind."""
    return pl.DataFrame([asdict(pair) | {"kind": pair.kind} for pair in pairs], schema=_SCHEMA | {"kind": pl.String})


def _fingerprint(project: Project, key: str) -> str:
    """Changes where the pairs of a shard may change: model, features, settings of search."""
    settings = project.config.search.model_dump(mode="json", exclude={"index", "keep_models"})
    inputs = {"features": project.shard(FEATURES_STAGE, key).digest()}
    return Provenance(PAIRS_STAGE, {"model": current_index(project.root).digest, **settings}, inputs).fingerprint


def _stored(root: DataRoot, place: str, fingerprint: str | None) -> tuple[DuplicatePair, ...] | None:
    """The pairs of a shard; None where there are none, or of another fingerprint. Raises DamagedError."""
    if not root.exists(place):
        return None
    with root.open(place) as file, root.naming_damage(place, remedy="run `hapvr duplicates` again"):
        table = pq.read_table(pa.BufferReader(file.read()))
        if fingerprint is not None and read_schema_metadata(table.schema, _FINGERPRINT) != fingerprint:
            return None
        names = [field.name for field in fields(DuplicatePair)]
        return tuple(DuplicatePair(**row) for row in table.select(names).to_pylist())


def _pair(query: str, found: Found, probability: float, searcher: Searcher) -> DuplicatePair:
    segments = found.segments or ()
    covered = coverage(segments, query_s=searcher.seconds_of(query), reference_s=found.score.seconds)
    starts = (segments[0].query_start_s, segments[0].reference_start_s) if segments else (0.0, 0.0)
    other = found.score.video_id
    if other < query:
        covered, starts = covered[::-1], starts[::-1]
    return DuplicatePair(
        first=min(query, other),
        second=max(query, other),
        similarity=found.score.similarity,
        probability=probability,
        first_covered=covered[0],
        second_covered=covered[1],
        first_start_s=starts[0],
        second_start_s=starts[1],
    )


def _equal_files(searcher: Searcher) -> Iterator[DuplicatePair]:
    """Files of the same bytes, which need no model."""
    by_content: dict[str, list[str]] = {}
    for video_id in searcher.video_ids():
        by_content.setdefault(searcher.facts.of(video_id).sha256, []).append(video_id)
    for ids in by_content.values():
        for first, second in combinations(sorted(ids), 2):
            yield DuplicatePair(
                first=first,
                second=second,
                similarity=1.0,
                probability=1.0,
                first_covered=1.0,
                second_covered=1.0,
                first_start_s=0.0,
                second_start_s=0.0,
            )


def _marked(pairs: Iterable[DuplicatePair], marks: Marks, searcher: Searcher) -> list[DuplicatePair]:
    if not len(marks):
        return list(pairs)
    found = []
    for pair in pairs:
        said = marks.verdict(searcher.facts.of(pair.first).sha256, searcher.facts.of(pair.second).sha256)
        found.append(pair if said is None else replace(pair, mark=said))
    return found


_SCHEMA: dict[str, Any] = {
    "first": pl.String,
    "second": pl.String,
    **dict.fromkeys(
        ("similarity", "probability", "first_covered", "second_covered", "first_start_s", "second_start_s"), pl.Float64
    ),
    "mark": pl.String,
}
_GROUP_SCHEMA: dict[str, Any] = {
    "group": pl.String,
    "video_id": pl.String,
    "medoid": pl.Boolean,
    "keep": pl.Boolean,
    "reason": pl.String,
    "similarity": pl.Float64,
    "path": pl.String,
    "sha256": pl.String,
    "num_bytes": pl.Int64,
    "duration_s": pl.Float64,
    "width_px": pl.Int32,
    "height_px": pl.Int32,
    "codec": pl.String,
}
