"""What the stage of duplicates has found, as groups and pairs that a page can list a piece at a time."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hapvr.errors import ArgumentError
from hapvr.search.collection import VideoMetadata
from hapvr.search.duplicates import KINDS, DuplicatePair, GroupMember, group_copies
from hapvr.search.marks import PLACE as MARKS_PLACE
from hapvr.serving.collection import OpenIndex
from hapvr.stages.duplicates import (
    LEAST_PROBABILITY,
    MARKED_PLACE,
    PAIRS_STAGE,
    duplicate_pairs,
    outdated_duplicates,
)
from hapvr.storage.filesystem import DataRoot

SAME_DURATION_S = 0.5
Key = list[Any]


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Which groups and pairs are wanted. kind: "" for all. folder: beginning of ids; source: the part before the first /."""

    kind: str = ""
    folder: str = ""
    source: str = ""
    min_probability: float = 0.9

    def __post_init__(self) -> None:
        if self.kind and self.kind not in KINDS:
            raise ArgumentError(f"kind is {self.kind!r:.100}; wanted {', '.join(KINDS)}, or nothing for all")
        if not LEAST_PROBABILITY <= self.min_probability <= 1:
            raise ArgumentError(
                f"min_probability is {self.min_probability}; wanted a number in [{LEAST_PROBABILITY:g}, 1]"
            )

    def admits(self, video_ids: Iterable[str]) -> bool:
        """Whether one of the videos is in the folder and of the source."""
        source = f"{self.source}/" if self.source else ""
        return any(video_id.startswith(self.folder) and video_id.startswith(source) for video_id in video_ids)


class KnownPairs:
    """All stored pairs, those that are marked as no match too. They are read again when something has changed."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._state: object = None
        self._pairs: list[DuplicatePair] = []
        self._searched: set[str] = set()

    def read(self, index: OpenIndex) -> tuple[list[DuplicatePair], set[str]]:
        """The pairs, and the shards whose videos were searched for as they are now. Raises DamagedError."""
        root = index.project.root
        with self._guard:
            keys = root.list_folders(PAIRS_STAGE)
            places = [*(f"{PAIRS_STAGE}/{key}/rows.parquet" for key in keys), MARKED_PLACE]
            state = (index.state, _state(root, places))
            if state != self._state:
                self._pairs = duplicate_pairs(
                    index.project, index.searcher, min_probability=LEAST_PROBABILITY, rejected=True
                )
                missing = outdated_duplicates(index.project).uncompared
                self._searched, self._state = set(index.searcher.collection.shards()) - missing.keys(), state
            return self._pairs, self._searched


def _state(root: DataRoot, names: Sequence[str]) -> object:
    """Changes when one of the files does, or the marks."""
    marks = root.sha256(MARKS_PLACE) if root.exists(MARKS_PLACE) else ""
    found = root.filesystem.get_file_info([root.path(name) for name in names])
    return marks, tuple((info.path, info.size, info.mtime_ns) for info in found)


def listed(pairs: Sequence[DuplicatePair], index: OpenIndex, filters: Filters) -> list[tuple[Key, dict[str, Any]]]:
    """Groups of copies, then pairs of the other kinds, each with the key that it is sorted by."""
    apart = {frozenset((pair.first, pair.second)) for pair in pairs if pair.mark == "not_a_match"}
    wanted = [pair for pair in pairs if pair.mark != "not_a_match"]
    wanted = [pair for pair in wanted if pair.mark or pair.probability >= filters.min_probability]
    facts = {one: index.searcher.collection.metadata.of(one) for pair in wanted for one in (pair.first, pair.second)}
    found: list[tuple[Key, dict[str, Any]]] = []
    if filters.kind in ("", "copy"):
        by_ids = {(pair.first, pair.second): pair for pair in wanted}
        groups: dict[str, list[GroupMember]] = {}
        for member in group_copies(wanted, facts, apart=lambda one, other: frozenset((one, other)) in apart):
            groups.setdefault(member.group, []).append(member)
        found += [_group(name, members, by_ids, facts) for name, members in groups.items()]
    found += [_pair(pair, facts) for pair in wanted if pair.kind != "copy" and filters.kind in ("", pair.kind)]
    found = [one for one in found if filters.admits(member["id"] for member in one[1]["members"])]
    return sorted(found, key=lambda one: one[0])


def after(rows: Sequence[tuple[Key, dict[str, Any]]], cursor: str, limit: int) -> tuple[list[dict[str, Any]], str]:
    """`limit` rows behind a cursor, and the cursor of the next ones; "" at both ends. Raises ArgumentError."""
    last = _read_cursor(cursor)
    rest = [row for row in rows if last is None or row[0] > last]
    shown = rest[:limit]
    following = _write_cursor(shown[-1][0]) if len(rest) > limit else ""
    return [value for _, value in shown], following


def _write_cursor(key: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def _read_cursor(cursor: str) -> Key | None:
    if not cursor:
        return None
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii")))
        rank, size, probability, name = key
        return [int(rank), int(size), float(probability), str(name)]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ArgumentError(f"cursor is {cursor!r:.100}; wanted the `next` of another answer, or nothing") from error


def _group(
    name: str,
    members: Sequence[GroupMember],
    by_ids: Mapping[tuple[str, str], DuplicatePair],
    facts: Mapping[str, VideoMetadata],
) -> tuple[Key, dict[str, Any]]:
    medoid = next(member.video_id for member in members if member.medoid)
    rows, chances = [], []
    for member in members:
        row = video_row(member.video_id, member.metadata) | {"keep": member.keep, "reason": member.reason, "mark": ""}
        if not member.medoid:
            pair = by_ids[min(medoid, member.video_id), max(medoid, member.video_id)]
            row |= {"probability": pair.probability, "mark": pair.mark, **_seen_from(pair, medoid)}
            chances.append(pair.probability)
        rows.append(row | {"medoid": member.medoid})
    probability = min(chances)
    value = {"kind": "copy", "group": name, "probability": probability, "differing": differing(rows), "members": rows}
    return [0, -len(rows), -probability, name], value


def _pair(pair: DuplicatePair, facts: Mapping[str, VideoMetadata]) -> tuple[Key, dict[str, Any]]:
    first = video_row(pair.first, facts[pair.first]) | {"medoid": True}
    second = video_row(pair.second, facts[pair.second]) | {"medoid": False, "probability": pair.probability}
    second |= {"mark": pair.mark, **_seen_from(pair, pair.first)}
    value: dict[str, Any] = {
        "kind": pair.kind,
        "group": "",
        "probability": pair.probability,
        "members": [first, second],
    }
    value["differing"] = differing([first, second])
    return [KINDS.index(pair.kind), -2, -pair.probability, f"{pair.first}\n{pair.second}"], value


def matches_of(pairs: Iterable[DuplicatePair], video_id: str) -> list[dict[str, Any]]:
    """The pairs of one video, seen from it, the most probable first."""
    rows = [
        {
            "reference": pair.second if pair.first == video_id else pair.first,
            "kind": pair.kind,
            "similarity": pair.similarity,
            "probability": pair.probability,
            "mark": pair.mark,
            **_seen_from(pair, video_id),
        }
        for pair in pairs
        if video_id in (pair.first, pair.second)
    ]
    return sorted(rows, key=lambda row: (-row["probability"], -row["similarity"], row["reference"]))


def _seen_from(pair: DuplicatePair, video_id: str) -> dict[str, Any]:
    """How much of both sides the common parts cover, and where the first begins, with this video as the query."""
    covered, starts = (pair.first_covered, pair.second_covered), (pair.first_start_s, pair.second_start_s)
    if pair.first != video_id:
        covered, starts = covered[::-1], starts[::-1]
    return {
        "query_covered": covered[0],
        "reference_covered": covered[1],
        "query_start_s": starts[0],
        "reference_start_s": starts[1],
    }


def video_row(video_id: str, facts: VideoMetadata) -> dict[str, Any]:
    """What a page shows of a video. playable: whether its file was there when it was looked into."""
    return {
        "id": video_id,
        "num_bytes": facts.num_bytes,
        "duration_s": facts.duration_s,
        "width_px": facts.width_px,
        "height_px": facts.height_px,
        "codec": facts.codec,
        "playable": facts.path is not None,
    }


def differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Fields in which the videos differ; durations by more than half a second."""
    names = [name for name in ("width_px", "height_px", "codec", "num_bytes") if len({row[name] for row in rows}) > 1]
    seconds = [row["duration_s"] or 0.0 for row in rows]
    return [*names, "duration_s"] if max(seconds) - min(seconds) > SAME_DURATION_S else names
