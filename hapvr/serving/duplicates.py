"""What the step of duplicates has found, as groups and pairs that a page can list; and that step in the background, for
people who have no Dagster."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

from hapvr.scorer.access import Deadline
from hapvr.search.duplicates import KINDS, DuplicatePair
from hapvr.search.match import verdict_of
from hapvr.serving.answers import DuplicateJobState
from hapvr.serving.collection import OpenIndex
from hapvr.serving.refusals import describe
from hapvr.serving.requests import DuplicateFilter
from hapvr.steps.duplicates import (
    copy_groups,
    duplicate_pairs,
    make_duplicate_groups,
    make_duplicate_pairs,
    outdated_pairs,
)


def listed(index: OpenIndex, wanted: DuplicateFilter) -> list[dict[str, Any]]:
    """Groups of copies, then pairs of the other kinds, the largest and surest first."""
    pairs = duplicate_pairs(index.searcher.project, index.searcher, min_probability=wanted.min_probability)
    by_ids = {frozenset((pair.first, pair.second)): pair for pair in pairs}

    def shown(video_id: str, medoid: str) -> dict[str, Any]:
        row = index.video_row(video_id) | {"medoid": video_id == medoid}
        return row if video_id == medoid else row | _seen_from(medoid, by_ids[frozenset((medoid, video_id))])

    rows = []
    for name, group in groupby(copy_groups(index.searcher, pairs), key=lambda member: member.group):
        members = list(group)
        medoid = next(member.video_id for member in members if member.medoid)
        copies = [shown(one.video_id, medoid) | {"keep": one.keep, "reason": one.reason} for one in members]
        rows.append({"kind": "copy", "group": name, "members": copies})
    for pair in pairs:
        if pair.kind != "copy":
            both = [shown(one, pair.first) for one in (pair.first, pair.second)]
            rows.append({"kind": pair.kind, "group": "", "members": both})

    def admitted(row: Mapping[str, Any]) -> bool:
        inside = any(one["id"].startswith(wanted.folder) for one in row["members"])
        return inside and wanted.kind in ("", row["kind"])

    def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
        members = row["members"]
        return KINDS.index(row["kind"]), -len(members), -row["probability"], [one["id"] for one in members]

    for row in rows:
        row["probability"] = min(one["probability"] for one in row["members"] if not one["medoid"])
    return sorted(filter(admitted, rows), key=place)


def _seen_from(medoid: str, pair: DuplicatePair) -> dict[str, Any]:
    """What is said of a pair, and how much of both sides the common parts cover, with the medoid as the query."""
    covered = (pair.first_covered, pair.second_covered)
    query_covered, reference_covered = covered if pair.first == medoid else covered[::-1]
    return {
        "probability": pair.probability,
        "mark": pair.mark,
        "verdict": verdict_of(pair.probability, mark=pair.mark, same_file=pair.same_file),
        "same_file": pair.same_file,
        "query_covered": query_covered,
        "reference_covered": reference_covered,
    }


class DuplicateJob:
    """Does what `hapvr duplicates` does, once at a time. One thread alone may start it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="duplicates")
        self._end = Deadline(None)
        self.state = DuplicateJobState(running=False, done=0, total=0, error="")

    def start(self, index: OpenIndex) -> DuplicateJobState:
        """Begin with the shards that were not looked through yet, unless that is under way."""
        if not self.state.running:
            self.state = DuplicateJobState(running=True, done=0, total=0, error="")
            self._pool.submit(self._run, index, self.state)
        return self.state

    def close(self) -> None:
        """End it and wait for that; shards that are finished stay."""
        self._end.cancel()
        self._pool.shutdown()

    def _run(self, index: OpenIndex, state: DuplicateJobState) -> None:
        def progress(number: int, _total: int, _frames: int = 0, /) -> None:
            self._end.check()
            state.done = before + number

        before = 0
        try:
            counts = {
                key: len(index.searcher.collection.video_ids(key)) for key in outdated_pairs(index.searcher.project)
            }
            state.total = sum(counts.values())
            for key, count in counts.items():
                make_duplicate_pairs(index.searcher.project, index.searcher, key, progress=progress)
                before += count
            make_duplicate_groups(index.searcher.project, index.searcher)
        except Exception as error:
            state.error = describe(error)[1]["error"]
        finally:
            state.running = False
