"""What the step of duplicates has found, as groups and pairs that a page can list a piece at a time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from hapvr.search.duplicates import KINDS, DuplicatePair, GroupMember, group_copies
from hapvr.search.match import verdict_of
from hapvr.serving.collection import REFRESH_S, OpenIndex
from hapvr.serving.requests import DuplicateFilter
from hapvr.steps.duplicates import (
    LEAST_PROBABILITY,
    duplicate_pairs,
    metadata_of_pairs,
    named_copies,
    outdated_pairs,
)

SAME_DURATION_S = 0.5
Key = tuple[int, int, float, str]
"""What rows are sorted by: kind, size, probability, name."""

_CURSOR = TypeAdapter(Key)


class StoredDuplicates:
    """All stored pairs, those that are marked as no match too. They are read again after a while, and after a mark."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._index: OpenIndex | None = None
        self._read_s = -float("inf")
        self._pairs: list[DuplicatePair] = []
        self._searched: set[str] = set()

    def read(self, index: OpenIndex) -> tuple[list[DuplicatePair], set[str]]:
        """The pairs, and the shards whose videos were searched for as they are now. Raises DamagedError."""
        with self._guard:
            if index is not self._index or time.monotonic() - self._read_s >= REFRESH_S:
                self._pairs = duplicate_pairs(
                    index.project, index.searcher, min_probability=LEAST_PROBABILITY, rejected=True
                )
                missing = outdated_pairs(index.project)
                self._searched = set(index.searcher.collection.shards()) - missing.keys()
                self._index, self._read_s = index, time.monotonic()
            return self._pairs, self._searched

    def forget(self) -> None:
        """Read them again: a pair was marked."""
        self._read_s = -float("inf")


def listed(
    pairs: Sequence[DuplicatePair], index: OpenIndex, wanted: DuplicateFilter
) -> list[tuple[Key, dict[str, Any]]]:
    """Groups of copies, then pairs of the other kinds, each with the key that it is sorted by."""
    apart = {frozenset((pair.first, pair.second)) for pair in pairs if pair.mark == "not_a_match"}
    chosen = [
        pair
        for pair in pairs
        if pair.mark != "not_a_match" and (pair.mark or pair.probability >= wanted.min_probability)
    ]
    found: list[tuple[Key, dict[str, Any]]] = []
    if wanted.kind in ("", "copy"):
        metadata = metadata_of_pairs(index.searcher, chosen)
        by_ids = {(pair.first, pair.second): pair for pair in chosen}
        groups: dict[str, list[GroupMember]] = {}
        members = group_copies(chosen, metadata, apart=lambda one, other: frozenset((one, other)) in apart)
        for member in named_copies(members, index.searcher):
            groups.setdefault(member.group, []).append(member)
        found += [_group(name, members, by_ids, index) for name, members in groups.items()]
    found += [_pair(pair, index) for pair in chosen if pair.kind != "copy" and wanted.kind in ("", pair.kind)]
    source = f"{wanted.source}/" if wanted.source else ""

    def admitted(row: Mapping[str, Any]) -> bool:
        """Whether one of the videos is in the folder and of the source."""
        return any(one["id"].startswith(wanted.folder) and one["id"].startswith(source) for one in row["members"])

    return sorted((one for one in found if admitted(one[1])), key=lambda one: one[0])


def after(rows: Sequence[tuple[Key, dict[str, Any]]], cursor: str, limit: int) -> tuple[list[dict[str, Any]], str]:
    """`limit` rows behind a cursor, and the cursor of the next ones; "" at both ends. ValidationError for no cursor."""
    last = _CURSOR.validate_json(cursor) if cursor else None
    rest = [row for row in rows if last is None or row[0] > last]
    following = json.dumps(rest[limit - 1][0]) if len(rest) > limit else ""
    return [value for _, value in rest[:limit]], following


def _group(
    name: str, members: Sequence[GroupMember], by_ids: Mapping[tuple[str, str], DuplicatePair], index: OpenIndex
) -> tuple[Key, dict[str, Any]]:
    medoid = next(member.video_id for member in members if member.medoid)
    rows = []
    for member in members:
        row = index.video_row(member.video_id) | {"keep": member.keep, "reason": member.reason, "medoid": member.medoid}
        if not member.medoid:
            pair = by_ids[min(medoid, member.video_id), max(medoid, member.video_id)]
            row |= {"probability": pair.probability, **_seen_from(pair, medoid, index)}
        rows.append({"mark": ""} | row)
    return _row("copy", name, rows, name)


def _pair(pair: DuplicatePair, index: OpenIndex) -> tuple[Key, dict[str, Any]]:
    first, second = (index.video_row(one) | {"medoid": one == pair.first} for one in (pair.first, pair.second))
    second |= {"probability": pair.probability, **_seen_from(pair, pair.first, index)}
    return _row(pair.kind, "", [first, second], f"{pair.first}\n{pair.second}")


def _row(kind: str, group: str, members: list[dict[str, Any]], name: str) -> tuple[Key, dict[str, Any]]:
    probability = min(row["probability"] for row in members if "probability" in row)
    differing = [
        field for field in ("width_px", "height_px", "codec", "num_bytes") if len({row[field] for row in members}) > 1
    ]
    seconds = [row["duration_s"] or 0.0 for row in members]
    if max(seconds) - min(seconds) > SAME_DURATION_S:
        differing.append("duration_s")
    value = {"kind": kind, "group": group, "probability": probability, "differing": differing, "members": members}
    return (KINDS.index(kind), -len(members), -probability, name), value


def _seen_from(pair: DuplicatePair, video_id: str, index: OpenIndex) -> dict[str, Any]:
    """Mark and verdict, how much of both sides the common parts cover, and where the first begins, with this video as the query."""
    sides = [(pair.first_covered, pair.first_start_s), (pair.second_covered, pair.second_start_s)]
    query, reference = sides if pair.first == video_id else sides[::-1]
    return {
        "mark": pair.mark,
        "verdict": verdict_of(pair.probability, mark=pair.mark, same_file=pair.same_file),
        "same_file": pair.same_file,
        "query_covered": query[0],
        "reference_covered": reference[0],
        "query_start_s": query[1],
        "reference_start_s": reference[1],
    }
